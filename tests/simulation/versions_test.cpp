// The daemon is started again with other versions of the protocol while a job runs.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/sanitized.hpp"
#include "tests/simulation/working_job.hpp"
#include "tests/simulation/world.hpp"

namespace ddp::simulation {
namespace {

using rendezvous::VersionRange;

constexpr std::uint64_t kVersionSeeds = test::kIsSanitized ? 5 : 20;
constexpr VersionRange kOfNodes{2, 3};

class DaemonOfAnotherVersion : public WorkingJob {
 protected:
  static void replace_daemon(World& world, const VersionRange& versions) {
    world.job.daemon_versions = versions;
    world.kill_daemon();
    run(world, world.dice.between(0ms, 10s));
    world.start_daemon();
  }
};

TEST_F(DaemonOfAnotherVersion, GoesOnWithTheRoundIfBothHaveACommonVersion) {
  for (const auto& versions : {VersionRange{1, 2}, VersionRange{2, 3}, VersionRange{3, 4}, VersionRange{1, 9}})
    for (std::uint64_t seed = 1; seed <= kVersionSeeds; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", versions from " + std::to_string(versions.low));
      World world(seed, false);
      world.job.node_versions = world.job.daemon_versions = kOfNodes;
      begin(world, true);
      const auto round = world.nodes().front()->round().round;
      replace_daemon(world, versions);
      run(world, 30s);
      expect_at_work(world, static_cast<std::size_t>(world.job.hosts), round, round.number);
      ASSERT_FALSE(HasFatalFailure());
      ASSERT_NE(world.membership_of_daemon(), nullptr);
      ASSERT_EQ(world.membership_of_daemon()->view().nodes.size(), static_cast<std::size_t>(world.job.hosts));
    }
}

TEST_F(DaemonOfAnotherVersion, EndsNoWorkerWithoutACommonVersionIfTheOldDaemonComesBackInTime) {
  for (const auto& versions : {VersionRange{1, 1}, VersionRange{4, 5}})
    for (std::uint64_t seed = 1; seed <= kVersionSeeds; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", versions from " + std::to_string(versions.low));
      World world(seed, false);
      world.job.node_versions = world.job.daemon_versions = kOfNodes;
      begin(world, true);
      const auto round = world.nodes().front()->round().round;
      replace_daemon(world, versions);
      run(world, 60s);
      replace_daemon(world, kOfNodes);
      run(world, 30s);
      expect_at_work(world, static_cast<std::size_t>(world.job.hosts), round, round.number);
      ASSERT_FALSE(HasFatalFailure());
    }
}

TEST_F(DaemonOfAnotherVersion, RefusesAllNodesForGoodWithoutACommonVersion) {
  for (std::uint64_t seed = 1; seed <= kVersionSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    world.job.node_versions = world.job.daemon_versions = kOfNodes;
    begin(world, true);
    replace_daemon(world, {4, 5});
    run(world, world.job.orphan_limit + 60s);
    EXPECT_TRUE(world.nodes_alive().empty());
    for (const auto& node : world.nodes()) EXPECT_EQ(node->exit_code(), 77) << node->name();
  }
}

}  // namespace
}  // namespace ddp::simulation
