// Collectives over a network that delays and loses, and what ranks are told when an interface goes down under them.
//
// This program stands in for the C library's setsockopt, so that a test can keep the kernel from finding a host silent.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/multihost/multihost.hpp"

namespace {

bool is_silence_found = true;

}  // namespace

extern "C" __attribute__((visibility("default"))) int setsockopt(int fd, int level, int name, const void* value,
                                                                 socklen_t bytes) noexcept {
  const bool finds_silence =
      (level == SOL_SOCKET && name == SO_KEEPALIVE) || (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT);
  if (finds_silence && !is_silence_found) return 0;
  return static_cast<int>(::syscall(SYS_setsockopt, fd, level, name, value, bytes));
}

namespace ddp {
namespace {

using std::chrono::milliseconds;
using test::Hosts;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

constexpr std::size_t kLarge = 1'500'001;  // of int64: goes round the hosts in a ring, in several pieces
// Of each call in the midst of which an interface may go down. Every call before that must succeed within this time, so
// the limit is long. It is shorter than kSilenceMax, after which the runtime takes a host for lost.
constexpr milliseconds kLimit{20'000};

class NetworkFaults : public test::Multihost {};

// Of every kind of way: little data, a ring in the user's memory or block by block, and exchanges of all with all.
void check_sums(ProcessGroup& group, int rounds) {
  const auto size = static_cast<std::int64_t>(group.size());
  const std::int64_t rank = group.rank();
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::int64_t> values(kLarge);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i) + rank;
    group.all_reduce(values);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      wrong += values[i] != size * static_cast<std::int64_t>(i) + size * (size - 1) / 2 ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0u);
    std::int64_t few = rank;
    group.all_reduce({&few, 1});
    EXPECT_EQ(few, size * (size - 1) / 2);
    std::vector<std::int64_t> of_all(50'000 * static_cast<std::size_t>(size));
    const std::vector<std::int64_t> own(50'000, rank);
    group.all_gather(own, of_all);
    for (int r = 0; r < group.size(); ++r) EXPECT_EQ(of_all[50'000 * static_cast<std::size_t>(r) + 49'999], r);
  }
}

TEST_F(NetworkFaults, DelayAndLossChangeNothingButTime) {
  Hosts* const hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  for (int host = 0; host < 3; ++host) {
    if (!disturb(host, {.delay = std::chrono::microseconds(300), .loss = 0.005})) return;
  }
  for (const std::vector<int>& host_of : {std::vector<int>{0, 1, 2}, std::vector<int>{0, 1, 2, 1}}) {
    run_ranks({*hosts, host_of, ""}, [&](int) {
      auto group = init_process_group({.timeout = std::chrono::seconds(50)});
      check_sums(group, 2);
    });
  }
}

TEST_F(NetworkFaults, SilencesThatEndChangeNothingButTime) {
  Hosts* const hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  constexpr int kSilences = 8;
  Shared<std::atomic<int>> rounds;
  Shared<std::atomic<bool>> is_over;
  RankProcesses ranks({*hosts, {0, 1, 2, 1}, ""}, [&](int rank) {
    auto group = init_process_group({.timeout = std::chrono::seconds(50)});
    for (std::uint8_t goes_on = 1; goes_on != 0;) {
      check_sums(group, 1);
      if (rank == 0) ++*rounds;
      if (rank == 0 && is_over->load()) goes_on = 0;
      group.broadcast({&goes_on, 1}, 0);
    }
  });
  for (int i = 0; i < kSilences; ++i) {
    const int before = rounds->load();
    wait_until([&] { return rounds->load() > before; });
    hosts->cut(i % 3);  // a call of `ip` takes long enough for packets to be lost
    hosts->heal(i % 3);
  }
  *is_over = true;
  for (int rank = 0; rank < 4; ++rank) ranks.expect_success(rank);
}

// All ranks are in a large all_reduce, one after the other, when the interface of one host goes down: each names ranks
// that it cannot reach. Nothing but the timeout of the call can end the wait.
void expect_named_when_down(Hosts& hosts, const std::vector<int>& host_of, int down) {
  Shared<std::atomic<int>> calls;
  const auto body = [&](int rank) {
    is_silence_found = false;
    auto group = init_process_group({.timeout = std::chrono::minutes(10)});
    std::vector<float> values(kLarge, 0.0f);
    group.all_reduce(values);  // makes all connections, under the timeout of the group
    const auto error = thrown_by<TimeoutError>([&] {
      for (;;) {
        group.all_reduce(values, ReduceOp::sum, {.timeout = kLimit});
        ++*calls;
      }
    });
    ASSERT_TRUE(error);
    std::vector<int> cut_off;  // from this rank
    for (int other = 0; other < group.size(); ++other) {
      const int host = host_of[static_cast<std::size_t>(other)];
      const int own = host_of[static_cast<std::size_t>(rank)];
      if (host != own && (host == down || own == down)) cut_off.push_back(other);
    }
    EXPECT_EQ(error->ranks(), cut_off) << error->what();
  };
  RankProcesses ranks({hosts, host_of, ""}, body);
  wait_until([&] { return calls->load() > 3 * static_cast<int>(host_of.size()); });
  hosts.take_down(down);
  for (int rank = 0; rank < static_cast<int>(host_of.size()); ++rank) ranks.expect_success(rank);
}

TEST_F(NetworkFaults, AnInterfaceThatGoesDownBetweenTwoHostsIsToldByTheNamesOfThePeers) {
  Hosts* const hosts = make_hosts({});
  if (hosts != nullptr) expect_named_when_down(*hosts, {0, 1, 1}, 1);
}

TEST_F(NetworkFaults, AnInterfaceThatGoesDownInTheMiddleOfARingIsToldByTheNamesOfThePeers) {
  Hosts* const hosts = make_hosts({.count = 4});
  if (hosts != nullptr) expect_named_when_down(*hosts, {0, 1, 2, 3}, 2);
}

// The kernel of a host answers for a rank that is busy, here for as long as finding a third host silent takes.
TEST_F(NetworkFaults, ALargeMessageWaitsForABusyPeerAndNotForOneOfASilentHost) {
  Hosts* const hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  constexpr std::size_t kMuch = 20'000'000;
  int over[2];  // a byte for each rank that is busy
  ASSERT_EQ(::pipe(over), 0);
  Shared<std::atomic<int>> sending;
  const auto be_busy = [&] {
    char byte = 0;
    EXPECT_EQ(::read(over[0], &byte, 1), 1);
  };
  RankProcesses ranks({*hosts, {0, 0, 1, 2}, ""}, [&](int rank) {
    auto group = init_process_group({.timeout = std::chrono::seconds(100)});
    std::vector<float> first(1), values(kMuch, rank == 0 ? 1.0f : 0.0f);
    const int peer = (rank + 2) % 4;
    rank < 2 ? group.send(first, peer) : group.receive(first, peer);
    if (rank < 2) ++*sending;
    if (rank >= 2) be_busy();
    if (rank == 2) {
      group.receive(values, peer);
      EXPECT_EQ(values.back(), 1.0f);
    } else if (rank == 0) {
      group.send(values, peer);
    } else if (rank == 1) {
      const auto error = thrown_by<RankFailure>([&] { group.send(values, peer); });
      EXPECT_EQ(::write(over[1], "..", 2), 2);
      ASSERT_TRUE(error);
      EXPECT_EQ(error->ranks(), std::vector<int>{3});
    }
  });
  wait_until([&] { return sending->load() == 2; });
  hosts->cut(2);
  for (int rank = 0; rank < 4; ++rank) ranks.expect_success(rank);
  ::close(over[0]);
  ::close(over[1]);
}

}  // namespace
}  // namespace ddp
