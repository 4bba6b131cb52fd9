// A daemon that has as many jobs as it takes.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/sanitized.hpp"
#include "tests/simulation/crowd.hpp"
#include "tests/simulation/working_job.hpp"
#include "tests/simulation/world.hpp"

namespace ddp::simulation {
namespace {

constexpr std::uint64_t kFullDaemonSeeds = test::kIsSanitized ? 5 : 40;
constexpr int kPlaces = 4;

using FullDaemon = WorkingJob;

TEST_F(FullDaemon, EndsNoWorkerOfAJobThatComesAgain) {
  for (std::uint64_t seed = 1; seed <= kFullDaemonSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    world.job.jobs_max = kPlaces;
    begin(world, true, 8s);  // the daemon is full for longer
    const auto round = world.nodes().front()->round();
    world.kill_daemon();
    for (auto* node : world.nodes_alive()) world.pause(node->process(), 900ms);  // the others come first
    world.start_daemon();
    Crowd others(world);
    others.come(kPlaces, world.clock.now() + 20s);
    run(world, 40s);
    EXPECT_GT(world.refused_with_round, 0u);
    expect_at_work(world, static_cast<std::size_t>(world.job.hosts), round.round, round.round.number);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST_F(FullDaemon, EndsANodeThatHasNoRoundYet) {
  World world(1, false);
  world.job.jobs_max = kPlaces;
  world.job.is_daemon_apart = true;
  world.begin();
  world.start_daemon();
  Crowd others(world);
  others.come(kPlaces, world.clock.now() + 60s);
  run(world, 1s);
  const auto& node = world.start_node(0);
  run(world, 1s);
  EXPECT_EQ(world.refused_new, 1u);
  EXPECT_FALSE(node.is_alive());
  EXPECT_NE(node.exit_code().value_or(0), 0);
}

}  // namespace
}  // namespace ddp::simulation
