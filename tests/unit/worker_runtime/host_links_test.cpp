// What two leaders say to each other over real connections on loopback, and what one makes of a peer that knows the
// secret but sends nonsense, stops in the middle, or ends.
#include "worker_runtime/backends/cpu/hosts/host_links.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/soon.hpp"

namespace ddp::cpu_backend {
namespace {

using namespace core;

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using End = HostStreams::End;

using test::kPatience;

base::Deadline after(milliseconds limit) { return {Clock::now(), Clock::now() + limit}; }
bool never() { return false; }

std::pair<TcpSocket, TcpSocket> connection() {
  base::UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t bytes = sizeof address;
  base::UniqueFd caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(listener.get(), generic, bytes), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), generic, &bytes), 0);
  EXPECT_EQ(::connect(caller.get(), generic, bytes), 0);
  base::UniqueFd called(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return {TcpSocket(std::move(caller)), TcpSocket(std::move(called))};
}

// Ranks 0 and 1 on host 0, rank 2 on host 1.
const HostLayout kLayout({0, 0, 1});

// The connections of one leader, and what it hears.
class Leader {
 public:
  Leader(int host, LinkSockets sockets) : other_(1 - host) {
    std::vector<LinkSockets> by_host(2);
    by_host[static_cast<std::size_t>(other_)] = std::move(sockets);
    links_.emplace(
        kLayout, host, std::move(by_host),
        [this](const RankNews& news) {
          const std::lock_guard lock(mutex_);
          heard_.push_back(news);
          changed_.notify_all();
        },
        [this](std::uint64_t call) {
          asked_ = call;
          RankNews news;
          news.trouble = Trouble::missing;
          news.rank = 1;
          return std::vector<RankNews>{news};
        });
  }

  HostLinks& links() { return *links_; }
  void end() { links_.reset(); }
  std::uint64_t asked() const { return asked_; }

  End transfer(std::span<const std::byte> out, std::span<std::byte> in, milliseconds limit = kPatience,
               const std::function<bool()>& must_stop = never) {
    std::vector<HostStreams::Parcel> parcels(2);
    parcels[static_cast<std::size_t>(other_)] = {out, in};
    auto deadline = after(limit);
    return links_->streams().transfer(parcels, {must_stop, deadline});
  }

  // The first news; nothing where none come.
  std::optional<RankNews> first_news() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [this] { return !heard_.empty(); });
    return heard_.empty() ? std::nullopt : std::optional(heard_.front());
  }
  std::size_t heard_count() {
    const std::lock_guard lock(mutex_);
    return heard_.size();
  }

 private:
  int other_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RankNews> heard_;
  std::atomic<std::uint64_t> asked_{0};
  std::optional<HostLinks> links_;
};

class TwoLeaders : public ::testing::Test {
 protected:
  TwoLeaders() {
    auto data = connection();
    auto news = connection();
    zero_.emplace(0, LinkSockets{std::move(data.first), std::move(news.first)});
    one_.emplace(1, LinkSockets{std::move(data.second), std::move(news.second)});
  }
  std::optional<Leader> zero_, one_;
};

TEST_F(TwoLeaders, ExchangeWhatIsLargerThanAnyBufferInBothDirections) {
  std::vector<std::byte> from_zero(9'000'001, std::byte{1}), from_one(5'000'000, std::byte{2});
  std::vector<std::byte> at_zero(from_one.size()), at_one(from_zero.size());
  for (int i = 0; i < 3; ++i) {
    auto other = std::async(std::launch::async, [&] { return one_->transfer(from_one, at_one).kind; });
    EXPECT_EQ(zero_->transfer(from_zero, at_zero).kind, End::Kind::complete);
    EXPECT_EQ(other.get(), End::Kind::complete);
    EXPECT_EQ(at_zero, from_one);
    EXPECT_EQ(at_one, from_zero);
    from_zero[9'000'000] = from_one[4'999'999] = static_cast<std::byte>(i);
  }
}

TEST_F(TwoLeaders, NameAtTheDeadlineWhomTheyWaitFor) {
  std::byte byte{};
  const End end = zero_->transfer({}, {&byte, 1}, milliseconds(50));
  EXPECT_EQ(end.kind, End::Kind::timed_out);
  EXPECT_THAT(end.hosts, ElementsAre(1));
}

TEST_F(TwoLeaders, StopWhenWoken) {
  std::byte byte{};
  std::atomic<bool> must_stop{false};
  auto end = std::async(std::launch::async, [&] {
    return zero_->transfer({}, {&byte, 1}, kPatience, [&] { return must_stop.load(); });
  });
  must_stop = true;
  zero_->links().wake();
  EXPECT_EQ(end.get().kind, End::Kind::stopped);
}

TEST_F(TwoLeaders, TellOfRanksAndAnswerQuestions) {
  zero_->links().tell({Trouble::lost, 1, 77, Presence::aborted, 5, {1, 2, 3}});
  const auto news = one_->first_news();
  ASSERT_TRUE(news);
  EXPECT_EQ(news->trouble, Trouble::lost);
  EXPECT_EQ(news->rank, 1);
  EXPECT_EQ(news->pid, 77);
  EXPECT_EQ(news->presence, Presence::aborted);
  EXPECT_EQ(news->calls, 5u);
  EXPECT_THAT(news->last_call, ElementsAre(1, 2, 3));

  EXPECT_THAT(one_->links().ask(9), IsEmpty());
  EXPECT_EQ(zero_->asked(), 9u);
  EXPECT_EQ(one_->heard_count(), 2u) << "the answer comes behind what it says";
}

TEST_F(TwoLeaders, AFarewellIsTheLastWordOnAnEnd) {
  one_->links().say_farewell({Trouble::lost, 2, 1, Presence::left, 3, {}});
  one_->end();
  zero_->links().hear_out(1);
  const auto news = zero_->first_news();
  ASSERT_TRUE(news);
  EXPECT_EQ(news->presence, Presence::left);
  EXPECT_EQ(zero_->heard_count(), 1u);
}

TEST_F(TwoLeaders, WhoEndsWithoutAFarewellIsLost) {
  std::byte byte{};
  one_->end();
  one_.reset();
  const auto news = zero_->first_news();
  ASSERT_TRUE(news);
  EXPECT_EQ(news->trouble, Trouble::lost);
  EXPECT_EQ(news->rank, 2);
  EXPECT_EQ(news->calls, kCallsUnknown);
  const End end = zero_->transfer({}, {&byte, 1});
  EXPECT_EQ(end.kind, End::Kind::host_lost);
  EXPECT_THAT(end.hosts, ElementsAre(1));
}

// The other side of the connections by hand.
class Peer : public ::testing::Test {
 protected:
  struct Frame {
    std::uint64_t exchange, bytes;
  };
  struct News {
    std::uint32_t word = 0, trouble = 1;
    std::int32_t rank = 2, pid = 1;
    std::uint32_t presence = 1, reserved = 0;
    std::uint64_t calls = 0, last_call[3] = {};
  };

  Peer() {
    auto data = connection();
    auto news = connection();
    data_ = std::move(data.first);
    news_ = std::move(news.first);
    leader_.emplace(0, LinkSockets{std::move(data.second), std::move(news.second)});
  }

  template <class T>
  static void send(const TcpSocket& socket, const T& what, std::size_t bytes = sizeof(T)) {
    auto deadline = after(kPatience);
    EXPECT_TRUE(send_all(socket.get(), std::as_bytes(std::span(&what, 1)).first(bytes), deadline));
  }

  std::string error_of_transfer() {
    std::byte room[4] = {};
    try {
      leader_->transfer({}, room);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  std::string error_of_swap() {
    std::byte room[4] = {};
    HostStreams::Swap swap{.to = 1, .from = 1, .out = {}, .in = room, .expected = sizeof room};
    auto deadline = after(kPatience);
    try {
      leader_->links().streams().swap(swap, {never, deadline});
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  TcpSocket data_, news_;
  std::optional<Leader> leader_;
};

TEST_F(Peer, AFrameOfAnotherSizeIsRefusedByNameBeforeItIsTakenIn) {
  send(data_, Frame{1, 1'000'000'000'000});
  EXPECT_THAT(error_of_transfer(), HasSubstr("rank 2 sent 1000000000000 bytes for exchange 1, not 4 for 1"));
}

TEST_F(Peer, AFrameOfAnotherExchangeIsRefused) {
  send(data_, Frame{8, 4});
  EXPECT_THAT(error_of_transfer(), HasSubstr("rank 2 sent 4 bytes for exchange 8, not 4 for 1"));
}

TEST_F(Peer, ASwapRefusesTheRightSizeOfAnotherExchange) {
  send(data_, Frame{8, 4});
  send(data_, std::uint32_t{7});
  EXPECT_THAT(error_of_swap(), HasSubstr("rank 2 sent 4 bytes for exchange 8, not 4 for 1"));
}

TEST_F(Peer, AFrameThatStopsInTheMiddleIsWaitedForToTheDeadline) {
  send(data_, Frame{1, 4}, 10);
  std::byte room[4] = {};
  const End end = leader_->transfer({}, room, milliseconds(50));
  EXPECT_EQ(end.kind, End::Kind::timed_out);
  EXPECT_THAT(end.hosts, ElementsAre(1));
}

TEST_F(Peer, AFrameThatEndsInTheMiddleIsALostHost) {
  send(data_, Frame{1, 4});
  data_.reset();
  std::byte room[4] = {};
  EXPECT_EQ(leader_->transfer({}, room).kind, End::Kind::host_lost);
}

TEST_F(Peer, WhatItSentBeforeItsEndStillArrives) {
  send(data_, Frame{1, 4});
  send(data_, std::uint32_t{0x07070707});
  data_.reset();
  news_.reset();
  leader_->links().hear_out(1);
  std::byte room[4] = {};
  EXPECT_EQ(leader_->transfer({}, room).kind, End::Kind::complete);
  EXPECT_EQ(room[3], std::byte{7});
  EXPECT_EQ(leader_->transfer({}, room).kind, End::Kind::host_lost) << "but nothing after";
}

TEST_F(Peer, NewsThatMakeNoSenseEndItsPartInTheGroup) {
  const struct {
    const char* what;
    News news;
  } cases[] = {{"an unknown word", {.word = 4}},
               {"an unknown trouble", {.trouble = 3}},
               {"no trouble", {.trouble = 0}},
               {"an unknown presence", {.presence = 99}},
               {"a rank below all", {.rank = -1}},
               {"a rank above all", {.rank = 3}},
               {"a rank far above all", {.rank = 1 << 30}}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    auto data = connection();
    auto news = connection();
    Leader leader(0, {std::move(data.second), std::move(news.second)});
    send(news.first, c.news);
    const auto heard = leader.first_news();
    ASSERT_TRUE(heard);
    EXPECT_EQ(heard->trouble, Trouble::lost);
    EXPECT_EQ(heard->rank, 2);
    EXPECT_EQ(heard->presence, Presence::protocol_error);
    std::byte room[4] = {};
    EXPECT_EQ(leader.transfer({}, room).kind, End::Kind::host_lost);
  }
}

TEST_F(Peer, HalfAMessageOfNewsIsNone) {
  send(news_, News{}, 20);
  news_.reset();
  const auto heard = leader_->first_news();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->presence, Presence::here) << "it ended";
}

TEST_F(Peer, OneThatNeverFallsSilentKeepsNobodyFromEnding) {
  std::atomic<bool> done{false};
  std::thread babbler([&] {
    const std::vector<News> flood(1000);
    while (!done) {
      if (::send(news_.get(), flood.data(), flood.size() * sizeof(News), MSG_NOSIGNAL) < 0) return;
    }
  });
  EXPECT_TRUE(leader_->first_news());
  leader_->end();
  done = true;
  babbler.join();
}

TEST_F(Peer, OneThatNeverReadsBlocksNobodyThatTellsOfRanks) {
  for (int i = 0; i < 200'000; ++i) leader_->links().tell({Trouble::lost, 1, 1, Presence::left, 1, {}});
  const auto heard = leader_->first_news();
  ASSERT_TRUE(heard) << "it has been given up";
  EXPECT_EQ(heard->rank, 2);
}

}  // namespace
}  // namespace ddp::cpu_backend
