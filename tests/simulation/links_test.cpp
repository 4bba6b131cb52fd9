// Two hosts of a job can't reach each other, and both reach membership.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tests/sanitized.hpp"
#include "tests/simulation/working_job.hpp"
#include "tests/simulation/world.hpp"

namespace ddp::simulation {
namespace {

constexpr std::uint64_t kLinkSeeds = test::kIsSanitized ? 5 : 40;

class CutLink : public WorkingJob {
 protected:
  // Between two hosts, neither of which has the endpoint.
  static void begin_and_cut(World& world, int takes_seats_percent) {
    world.job.workers.takes_seats_percent = takes_seats_percent;
    world.job.workers_max = 3;
    begin(world, world.dice.chance(50));
    world.job.collective_timeout_min = 1ms;
    world.job.collective_timeout_max = 50ms;
    const int first = world.dice.between(1, world.job.hosts - 2);
    one = first;
    other = world.dice.between(first + 1, world.job.hosts - 1);
    for (const auto* node : world.nodes_alive())
      for (int local_rank = 0; local_rank < node->workers().count(); ++local_rank)
        incarnations[{node, local_rank}] = node->workers().incarnation(local_rank);
    world.network->block(one, other);
    world.network->block(other, one);
    world.miss_each_other(one, other);
  }
  // Every ddprun is alive, all but one work in one round, and none of that has cost a restart.
  static void expect_that_one_is_left_out(World& world) {
    ASSERT_EQ(world.nodes_alive().size(), static_cast<std::size_t>(world.job.hosts));
    int at_work = 0;
    for (const auto* node : world.nodes_alive()) {
      if (!node->workers().do_all_work()) continue;
      ++at_work;
      ASSERT_EQ(node->round().group_world_size, world.job.hosts - 1);
      ASSERT_EQ(node->round().restart_count, 0);
    }
    ASSERT_EQ(at_work, world.job.hosts - 1);
  }
  void SetUp() override { incarnations.clear(); }

  static inline int one = 0, other = 0;
  static inline std::map<std::pair<const Node*, int>, std::uint64_t> incarnations;
};

TEST_F(CutLink, CostsOneOfTheTwoHostsUntilTheLinkWorksAndNobodyIsKilled) {
  for (std::uint64_t seed = 1; seed <= kLinkSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    incarnations.clear();
    begin_and_cut(world, 100);
    run(world, 60s);
    ASSERT_NO_FATAL_FAILURE(expect_that_one_is_left_out(world));
    ASSERT_EQ(world.killed_alone, 0u);
    world.network->unblock_all();
    run(world, 40s);
    for (const auto* node : world.nodes_alive()) {
      ASSERT_TRUE(node->workers().do_all_work()) << node->name();
      ASSERT_EQ(node->round().group_world_size, world.job.hosts);
      for (int local_rank = 0; local_rank < node->workers().count(); ++local_rank)
        ASSERT_EQ(node->workers().incarnation(local_rank), incarnations.at({node, local_rank})) << node->name();
    }
  }
}

TEST_F(CutLink, OfWorkersThatAreStartedAgainCostsOneOfTheTwoHostsAndNoRestart) {
  for (std::uint64_t seed = 1; seed <= kLinkSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    begin_and_cut(world, 0);
    run(world, 60s);
    ASSERT_NO_FATAL_FAILURE(expect_that_one_is_left_out(world));
  }
}

}  // namespace
}  // namespace ddp::simulation
