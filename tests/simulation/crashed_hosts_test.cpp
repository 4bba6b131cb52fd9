// All processes of most hosts are killed, and other ddpruns come there. That these prove the ends of the nodes before
// them lets the one that is left go on.
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/sanitized.hpp"
#include "tests/simulation/working_job.hpp"
#include "tests/simulation/world.hpp"

namespace ddp::simulation {
namespace {

constexpr std::uint64_t kCrashSeeds = test::kIsSanitized ? 5 : 100;

class CrashedHosts : public WorkingJob {
 protected:
  // Of all hosts but one.
  static void crash_and_replace(World& world) {
    const int survivor = world.dice.between(0, world.job.hosts - 1);
    for (int host = 0; host < world.job.hosts; ++host) {
      if (host == survivor) continue;
      world.clock.after(world.dice.between(0ms, 1s), nullptr, [&world, host, is_told = world.dice.chance(50)] {
        if (host == 0) world.checks.endpoint_is_replaced();
        world.node_on(host)->crash(is_told);
        world.clock.after(world.dice.between(0ms, 3s), nullptr, [&world, host] { world.start_node(host); });
      });
    }
  }
};

TEST_F(CrashedHosts, AreReplacedAndTheJobGoesOnWithTheNodeThatIsLeft) {
  for (std::uint64_t seed = 1; seed <= kCrashSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    world.job.are_ends_proven = true;
    world.job.is_endpoint_numeric = world.dice.chance(50);
    ASSERT_NO_FATAL_FAILURE(begin(world, world.dice.chance(30)));
    const auto job_started = world.nodes().front()->round().job_started;
    crash_and_replace(world);
    run(world, 5s + 6 * world.job.network.heartbeat_timeout);
    ASSERT_EQ(world.nodes_alive().size(), static_cast<std::size_t>(world.job.hosts));
    for (const auto* node : world.nodes_alive()) {
      ASSERT_TRUE(node->workers().do_all_work()) << node->name();
      ASSERT_EQ(node->round().group_world_size, world.job.hosts);
      ASSERT_EQ(node->round().job_started, job_started) << "the job goes on, and is not begun once more";
    }
  }
}

}  // namespace
}  // namespace ddp::simulation
