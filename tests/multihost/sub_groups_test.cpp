// Groups that are made of a group whose ranks are on several hosts.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/multihost/multihost.hpp"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using test::Hosts;
using ::testing::ElementsAre;
using testing::kNotForEver;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

using HostOf = std::vector<int>;  // by rank

std::vector<std::int64_t> members(ProcessGroup& group, int world_rank) {
  const std::vector<std::int64_t> own{world_rank};
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather(own, all);
  return all;
}

void expect_sums(ProcessGroup& group) {
  const std::int64_t sum = group.size() * (group.size() - 1) / 2;
  for (const std::size_t count : {std::size_t{1}, std::size_t{300'001}}) {
    std::vector<std::int64_t> plain(count, group.rank());
    group.all_reduce(plain);
    EXPECT_EQ(std::count(plain.begin(), plain.end(), sum), static_cast<std::ptrdiff_t>(count));
    const auto memory = group.allocate(count * sizeof(std::int64_t));
    auto* const values = static_cast<std::int64_t*>(memory.data());
    std::fill_n(values, count, group.rank());
    group.all_reduce({values, count});
    EXPECT_EQ(std::count(values, values + count, sum), static_cast<std::ptrdiff_t>(count));
  }
}

std::size_t open_sockets() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().find("socket:") != std::string::npos) ++count;
  }
  return count;
}

struct Layout {
  const char* name;
  HostOf host_of;
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

class SubGroupsOverHosts : public test::Multihost, public ::testing::WithParamInterface<Layout> {};

TEST_P(SubGroupsOverHosts, AreGroupsOfTheirOwn) {
  const HostOf& host_of = GetParam().host_of;
  const int size = static_cast<int>(host_of.size());
  Hosts* const hosts = make_hosts({.count = *std::max_element(host_of.begin(), host_of.end()) + 1});
  if (hosts == nullptr) return;
  run_ranks({*hosts, host_of, ""}, [&](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    const std::size_t sockets = open_sockets();
    {
      auto reversed = world.split(0, -rank);  // other leaders than the world's
      EXPECT_EQ(reversed.rank(), size - 1 - rank);
      expect_sums(reversed);
      auto parity = reversed.split(rank % 2);
      for (const std::int64_t member : members(parity, rank)) EXPECT_EQ(member % 2, rank % 2);
      EXPECT_EQ(parity.size(), rank % 2 == 0 ? (size + 1) / 2 : size / 2);
      expect_sums(parity);
    }
    {
      auto of_host = world.split(host_of[static_cast<std::size_t>(rank)]);
      EXPECT_EQ(open_sockets(), sockets) << "within a host nobody needs a connection";
      expect_sums(of_host);
    }
    auto without_first = world.new_group([&] {
      std::vector<int> ranks;
      for (int each = size - 1; each > 0; --each) ranks.push_back(each);
      return ranks;
    }());
    if (rank > 0) expect_sums(without_first);
    expect_sums(world);
    without_first = {};
    EXPECT_EQ(open_sockets(), sockets);
    world.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, SubGroupsOverHosts,
                         ::testing::Values(Layout{"OneEach", {0, 1}}, Layout{"Halves", {0, 0, 1, 1}},
                                           Layout{"InTurn", {0, 1, 2, 0, 1, 2}}, Layout{"Uneven", {0, 1, 1, 1, 0}}),
                         [](const auto& layout) { return layout.param.name; });

class SubGroupFailuresOverHosts : public test::Multihost {};

TEST_F(SubGroupFailuresOverHosts, ADeathIsOneOfEveryGroupWithThatRankOnly) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  RankProcesses ranks({*hosts, {0, 0, 1, 1}, ""}, [](int rank) {
    auto world = init_process_group({.timeout = kNotForEver});
    auto with = world.new_group({1, 3});  // neither leads its host in the world
    auto without = world.new_group({2, 0});
    world.barrier();
    if (rank == 3) std::raise(SIGKILL);
    if (rank == 1) {
      const auto error = thrown_by<RankFailure>([&] { with.barrier(); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(1));
    }
    if (rank % 2 == 0) expect_sums(without);
    const auto error = thrown_by<RankFailure>([&] { world.split(0); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(3));
    if (rank % 2 == 0) expect_sums(without);
  });
  ranks.expect_killed(3);
  for (const int rank : {0, 1, 2}) ranks.expect_success(rank);
}

TEST_F(SubGroupFailuresOverHosts, ADeathDuringASplitLeavesNobodyWaiting) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  for (int round = 0; round < 10; ++round) {
    Shared<std::atomic<int>> begun;
    RankProcesses ranks({*hosts, {0, 0, 1, 1}, ""}, [&](int) {
      auto world = init_process_group({.timeout = kNotForEver});
      world.barrier();
      ++*begun;
      thrown_by<RankFailure>([&] {
        for (;;) auto group = world.split(0, -world.rank());
      });
    });
    wait_until([&] { return begun->load() == 4; });
    std::this_thread::sleep_for(std::chrono::microseconds(1013 * round));
    const int dying = round % 2 == 0 ? 3 : 2;
    ranks.kill(dying);
    ranks.expect_killed(dying);
    for (const int rank : {0, 1, 5 - dying}) ranks.expect_success(rank);
  }
}

TEST_F(SubGroupFailuresOverHosts, APortRangeHoldsForSubGroupsToo) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  run_ranks({*hosts, {0, 1}, ""}, [](int) {
    ::setenv("DDPRUN_PORT_RANGE", "20000-20002", 1);  // a port for each of three groups' messages
    auto world = init_process_group({.timeout = kNotForEver});
    auto first = world.split(0);  // the listener for its leaders has taken the next port, and given it back
    auto second = world.split(0);
    expect_sums(first);
    expect_sums(second);
  });
}

}  // namespace
}  // namespace ddp
