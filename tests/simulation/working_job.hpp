// A job that works undisturbed, before the test does something to it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "tests/simulation/world.hpp"

namespace ddp::simulation {

class WorkingJob : public ::testing::Test {
 protected:
  static void begin(World& world, bool is_daemon_apart, std::chrono::milliseconds orphan_limit = 300s) {
    auto& job = world.job;
    job.hosts = job.nodes_max = world.dice.between(3, 6);
    job.nodes_min = world.dice.between(2, job.nodes_max - 1);
    job.restarts_max = 1;
    job.is_daemon_apart = is_daemon_apart;
    job.network.delay_max = world.dice.one_of<Duration>({200us, 2ms, 20ms});
    job.network.heartbeat_timeout = world.dice.one_of<Duration>({1s, 3s});
    job.collective_timeout_min = job.collective_timeout_max = 60s;
    job.orphan_limit = orphan_limit;
    world.begin();
    if (is_daemon_apart) world.start_daemon();
    for (int host = 0; host < job.hosts; ++host) world.start_node(host);
    run(world, 10s);
    for (const auto* node : world.nodes_alive()) ASSERT_TRUE(node->workers().do_all_work());
  }
  static void run(World& world, Duration time) {
    ASSERT_TRUE(world.clock.run_until(world.clock.now() + time, 1'000'000));
  }
  // All nodes that live are at work in one round.
  static void expect_at_work(World& world, std::size_t nodes, const RoundId& at_least, std::uint32_t number) {
    ASSERT_EQ(world.nodes_alive().size(), nodes);
    for (const auto* node : world.nodes_alive()) {
      const auto& round = node->round();
      ASSERT_TRUE(node->workers().do_all_work()) << node->name();
      ASSERT_EQ(round.round.number, number) << node->name();
      ASSERT_FALSE(round.round < at_least);
      ASSERT_LT(round.round.term, 4'000'000'000u);
      ASSERT_EQ(static_cast<std::size_t>(round.group_world_size), nodes);
      ASSERT_EQ(round.restart_count, 0);
    }
  }
};

}  // namespace ddp::simulation
