// A group in which the only rank of another host is played by the test, over the same connections: what the others see
// when it ends, falls silent or sends protocol errors at each step of the meeting and of a collective.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/store/client.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "worker_runtime/core/bootstrap/meeting_verdict.hpp"
#include "worker_runtime/core/bootstrap/meeting_messages.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"
#include "worker_runtime/core/failure/fingerprint.hpp"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kNotForEver;
using testing::kPatience;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;
using namespace core;

constexpr milliseconds kSoon{2'000};
constexpr int kSize = 3;  // ranks 0 and 2 are on one host
constexpr int kImposter = 1;
constexpr std::size_t kCount = 64;            // float32: goes along with the opening of its call
constexpr std::size_t kLargeCount = 100'000;  // goes round the hosts, in two slices
constexpr std::size_t kSliceBytes = kLargeCount * sizeof(float) / 2;
const std::string kPrefix = "ddp/restart_0/group_0/";

class Imposter {
 public:
  Imposter() : end_(std::chrono::steady_clock::now() + kPatience) {
    const auto port = static_cast<std::uint16_t>(std::stoi(::getenv("MASTER_PORT")));
    auto store = store::Client::connect({.host = "127.0.0.1", .port = port, .deadline = end_});
    endpoint_ = decode_endpoint(store.get(kPrefix + "socket", end_));
  }

  TcpSocket open(RankHello::Purpose purpose, int size = kSize) const {
    RankHello hello;
    hello.purpose = purpose;
    hello.rank = kImposter;
    hello.size = size;
    put_text(hello.secret, endpoint_.secret);
    put_text(hello.group, kPrefix);
    put_text(hello.host, "another host");
    auto deadline = soon();
    return connect_tcp({"127.0.0.1", endpoint_.tcp.port}, hello, deadline);
  }

  template <class T>
  void send(const TcpSocket& socket, const T& what) const {
    send_bytes(socket, std::as_bytes(std::span(&what, 1)));
  }
  void send_bytes(const TcpSocket& socket, std::span<const std::byte> bytes) const {
    auto deadline = soon();
    EXPECT_TRUE(send_all(socket.get(), bytes, deadline));
  }
  void receive(const TcpSocket& socket, std::size_t count) const {
    std::vector<std::byte> bytes(count);
    auto deadline = soon();
    EXPECT_TRUE(receive_all(socket.get(), bytes, deadline));
  }

  // The meeting as a leader goes through it.
  static constexpr int kMeetingSteps = 7;
  void take_meeting_step(int step) {
    switch (step) {
      case 0: follower_ = open(RankHello::Purpose::follower); return receive(follower_, sizeof kAccepted);
      case 1: return receive(follower_, kSize * sizeof(std::int32_t));
      case 2: return send(follower_, FollowerMessage{FollowerMessage::Kind::ready, 1, {}});
      case 3: return receive(follower_, 2 * sizeof(LeaderEndpoint));
      case 4:
        data_ = open(RankHello::Purpose::data);
        news_ = open(RankHello::Purpose::news);
        return;
      case 5: return send(follower_, FollowerMessage{FollowerMessage::Kind::linked, 0, {}});
      case 6: return receive(follower_, sizeof kComplete);
    }
  }
  void meet() {
    for (int step = 0; step < kMeetingSteps; ++step) take_meeting_step(step);
  }

  // Then what leaders exchange: for the group's start five times a few words of each rank; the opening of an
  // all_reduce with what is to be summed; the opening of a large one, and its slices: to be summed, and summed.
  static constexpr int kExchanges = 9;
  static constexpr int kOpening = 5;
  void exchange(int number) {
    if (number < kOpening) {
      const core::FingerprintWords words{};
      return exchange_message(number, std::as_bytes(std::span(words)), 2 * sizeof words);
    }
    if (number <= kOpening + 1) {
      const std::vector<std::byte> opening = opening_of(number);
      return exchange_message(number, opening, opening.size());
    }
    send_bytes(data_, std::vector<std::byte>(kSliceBytes));
    receive(data_, kSliceBytes);
  }
  // Its beginning.
  void begin_exchange(int number) {
    if (number > kOpening + 1) return send(data_, std::uint64_t{0});
    send(data_, std::array<std::uint64_t, 3>{static_cast<std::uint64_t>(number) + 1, opening_of(number).size(), 0});
  }

  const TcpSocket& follower() const { return follower_; }
  const TcpSocket& data() const { return data_; }
  const TcpSocket& news() const { return news_; }

 private:
  void exchange_message(int number, std::span<const std::byte> contents, std::size_t expected) {
    send(data_, std::array<std::uint64_t, 2>{static_cast<std::uint64_t>(number) + 1, contents.size()});
    send_bytes(data_, contents);
    receive(data_, 2 * sizeof(std::uint64_t) + expected);
  }
  // How many bytes come behind it, how many calls, the call, the bytes.
  static std::vector<std::byte> opening_of(int number) {
    const bool is_large = number != kOpening;
    const core::FingerprintWords words = core::encode({.kind = process_group::CollectiveKind::all_reduce,
                                                       .type = DataType::float32,
                                                       .count = is_large ? kLargeCount : kCount});
    const std::array<std::uint64_t, 4> head{is_large ? 0 : kCount * sizeof(float), 1, words[0], words[1]};
    std::vector<std::byte> opening(sizeof head + head[0]);
    std::memcpy(opening.data(), head.data(), sizeof head);
    return opening;
  }
  base::Deadline soon() const { return {std::chrono::steady_clock::now(), end_}; }

  base::Deadline::TimePoint end_;
  CoordinatorEndpoint endpoint_;
  TcpSocket follower_, data_, news_;
};

// What ranks 0 and 2 do: meet, and reduce.
void take_part(milliseconds timeout) {
  auto group = init_process_group({.timeout = timeout});
  std::vector<float> values(kCount, 1);
  group.all_reduce(values);
  values.resize(kLargeCount);
  group.all_reduce(values);
}

// Plays rank 1 by `play` while the others expect `Failure`, which names that rank, and says `why`.
template <class Failure>
void play_rank(const std::function<void(Imposter&)>& play, const std::string& why, milliseconds timeout = kNotForEver) {
  Shared<std::atomic<int>> started, failed;
  run_ranks(kSize, [&](int rank) {
    ::setenv("LOCAL_WORLD_SIZE", "2", 1);
    ::setenv("LOCAL_RANK", rank == 2 ? "1" : "0", 1);
    if (rank == kImposter) {
      Imposter imposter;
      try {
        play(imposter);
      } catch (const ConnectionLost&) {
        EXPECT_NE(timeout, kNotForEver);  // else the others may give up before it has come so far
      }
      if (timeout != kNotForEver) wait_until([&] { return failed->load() == 2; });
      return;
    }
    ++*started;
    wait_until([&] { return started->load() == 2; });
    const auto error = thrown_by<Failure>([&] { take_part(timeout); });
    ++*failed;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(kImposter)) << error->what();
    EXPECT_THAT(error->what(), HasSubstr(why));
  });
}

TEST(Imposter, ThatDoesAllThatALeaderDoesIsOne) {
  run_ranks(kSize, [](int rank) {
    ::setenv("LOCAL_WORLD_SIZE", "2", 1);
    ::setenv("LOCAL_RANK", rank == 2 ? "1" : "0", 1);
    if (rank != kImposter) return take_part(kNotForEver);
    Imposter imposter;
    imposter.meet();
    for (int i = 0; i < Imposter::kExchanges; ++i) imposter.exchange(i);
  });
}

TEST(Imposter, ThatConnectsBeforeTheOtherLeaderWaitsForItIsAccepted) {
  run_ranks(kSize, [](int rank) {
    ::setenv("LOCAL_WORLD_SIZE", "2", 1);
    ::setenv("LOCAL_RANK", rank == 2 ? "1" : "0", 1);
    if (rank != kImposter) return take_part(kNotForEver);
    Imposter imposter;
    for (const int step : {0, 1, 4, 2, 3, 5, 6}) imposter.take_meeting_step(step);
    for (int i = 0; i < Imposter::kExchanges; ++i) imposter.exchange(i);
  });
}

TEST(Imposter, ThatEndsInTheMeetingIsNamed) {
  for (int steps = 1; steps <= Imposter::kMeetingSteps; ++steps) {
    SCOPED_TRACE("after step " + std::to_string(steps));
    play_rank<RankFailure>(
        [&](Imposter& imposter) {
          for (int step = 0; step < steps; ++step) imposter.take_meeting_step(step);
        },
        "ended");
  }
}

TEST(Imposter, ThatFallsSilentInTheMeetingIsNamedAtTheDeadline) {
  for (int steps = 1; steps <= Imposter::kMeetingSteps; ++steps) {
    SCOPED_TRACE("after step " + std::to_string(steps));
    play_rank<TimeoutError>(
        [&](Imposter& imposter) {
          for (int step = 0; step < steps; ++step) imposter.take_meeting_step(step);
        },
        "rank 1 did not ", kSoon);
  }
}

TEST(Imposter, ThatStopsInTheMiddleOfAMessageIsNamedAtTheDeadline) {
  play_rank<TimeoutError>(
      [](Imposter& imposter) {
        imposter.take_meeting_step(0);
        imposter.take_meeting_step(1);
        imposter.send(imposter.follower(), 'x');
      },
      "rank 1 did not join", kSoon);
}

TEST(Imposter, ThatSendsTheWrongMessageInTheMeetingIsNamed) {
  const auto says = [](int after_step, FollowerMessage::Kind kind) {
    return [=](Imposter& imposter) {
      for (int step = 0; step <= after_step; ++step) imposter.take_meeting_step(step);
      imposter.send(imposter.follower(), FollowerMessage{kind, 70'000, {}});
    };
  };
  const std::string why = "rank 1 sent what no rank sends";
  play_rank<RankFailure>(says(1, FollowerMessage::Kind::linked), why);
  play_rank<RankFailure>(says(3, FollowerMessage::Kind::ready), why);
  play_rank<RankFailure>(says(1, static_cast<FollowerMessage::Kind>(99)), why);
}

TEST(Imposter, ThatWasToldOfAnotherNumberOfRanksIsRefused) {
  run_ranks(kSize, [](int rank) {
    ::setenv("LOCAL_WORLD_SIZE", "2", 1);
    ::setenv("LOCAL_RANK", rank == 2 ? "1" : "0", 1);
    if (rank == kImposter) {
      const Imposter imposter;
      const auto socket = imposter.open(RankHello::Purpose::follower, 7);
      EXPECT_THROW(imposter.receive(socket, 1), ConnectionLost);
      return;
    }
    const auto error = thrown_by<Error>([] { take_part(kNotForEver); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("rank 1 was told of 7 ranks, rank 0 of 3"));
  });
}

TEST(Imposter, ThatEndsInACollectiveIsNamedWhereverItWas) {
  for (int done = 0; done < Imposter::kExchanges; ++done) {
    SCOPED_TRACE("after exchange " + std::to_string(done));
    play_rank<RankFailure>(
        [&](Imposter& imposter) {
          imposter.meet();
          for (int i = 0; i < done; ++i) imposter.exchange(i);
        },
        "rank 1 ended");
    if (done < Imposter::kOpening) continue;
    play_rank<RankFailure>(
        [&](Imposter& imposter) {
          imposter.meet();
          for (int i = 0; i < done; ++i) imposter.exchange(i);
          imposter.begin_exchange(done);
        },
        "rank 1 ended");
  }
}

TEST(Imposter, ThatSendsAFrameOfAnotherSizeEndsTheGroup) {
  Shared<std::atomic<int>> failed;
  run_ranks(kSize, [&](int rank) {
    ::setenv("LOCAL_WORLD_SIZE", "2", 1);
    ::setenv("LOCAL_RANK", rank == 2 ? "1" : "0", 1);
    if (rank == kImposter) {
      Imposter imposter;
      imposter.meet();
      for (int i = 0; i <= Imposter::kOpening; ++i) imposter.exchange(i);
      imposter.send(imposter.data(), std::array<std::uint64_t, 2>{Imposter::kOpening + 2, ~std::uint64_t{0}});
      EXPECT_THROW(imposter.receive(imposter.news(), 1u << 20), ConnectionLost);
      return wait_until([&] { return failed->load() == 2; });
    }
    const auto error = thrown_by<Error>([] { take_part(kNotForEver); });
    ++*failed;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                rank == 0 ? HasSubstr("rank 1 sent 18446744073709551615 bytes") : HasSubstr("rank 0 (pid "));
  });
}

TEST(Imposter, ThatSendsMalformedNewsOfRanksIsNamed) {
  play_rank<RankFailure>(
      [](Imposter& imposter) {
        imposter.meet();
        for (int i = 0; i <= Imposter::kOpening; ++i) imposter.exchange(i);
        const std::vector<std::byte> malformed(56, std::byte{0xab});
        imposter.send_bytes(imposter.news(), malformed);
        EXPECT_THROW(imposter.receive(imposter.data(), 1u << 20), ConnectionLost);
      },
      "rank 1 sent what no rank of this group sends");
}

}  // namespace
}  // namespace ddp
