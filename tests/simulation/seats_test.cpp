// Workers that live on from round to round: they leave the group of a round that is over, and get a seat in the next.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tests/sanitized.hpp"
#include "tests/simulation/working_job.hpp"
#include "tests/simulation/world.hpp"

namespace ddp::simulation {
namespace {

constexpr std::uint64_t kSeatSeeds = test::kIsSanitized ? 5 : 40;

class WorkersThatLiveOn : public WorkingJob {
 protected:
  using Place = std::pair<const Node*, int>;  // node and local rank
  struct Before {
    RoundId round;
    std::map<Place, std::uint64_t> incarnations;
  };

  static void begin_with(World& world, int takes_seats_percent) {
    world.job.workers.takes_seats_percent = takes_seats_percent;
    world.job.workers_max = 3;
    begin(world, world.dice.chance(50));
    world.job.collective_timeout_min = 1ms;
    world.job.collective_timeout_max = 50ms;
  }

  static Before before(const World& world) {
    Before out{world.nodes().front()->round().round, {}};
    for (const auto& node : world.nodes())
      for (int local_rank = 0; local_rank < node->workers().count(); ++local_rank)
        out.incarnations[{node.get(), local_rank}] = node->workers().incarnation(local_rank);
    return out;
  }

  static Place some_worker(World& world) {
    auto& node = *world.dice.one_of(world.nodes_alive());
    return {&node, world.dice.between(0, node.workers().count() - 1)};
  }

  static void kill(const World& world, const Place& worker) {
    world.node_of(worker.first->key()).workers().fail(worker.second, {launcher::Ending::Kind::killed, SIGKILL, false});
  }

  // All are at work in the next round, and it has cost the process of this worker alone.
  static void expect_only_one_is_new(const Before& before, const Place& expected) {
    for (const auto& [place, incarnation] : before.incarnations) {
      const auto& [node, local_rank] = place;
      ASSERT_TRUE(node->workers().do_all_work()) << node->name();
      ASSERT_EQ(node->round().round.number, before.round.number + 1) << node->name();
      ASSERT_EQ(node->round().restart_count, 1);
      ASSERT_EQ(node->workers().incarnation(local_rank) != incarnation, place == expected)
          << node->name() << " local rank " << local_rank;
    }
  }
};

TEST_F(WorkersThatLiveOn, OfThemAKilledOneAloneIsReplaced) {
  for (std::uint64_t seed = 1; seed <= kSeatSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    begin_with(world, 100);
    const auto was = before(world);
    const auto killed = some_worker(world);
    kill(world, killed);
    run(world, 30s);
    expect_only_one_is_new(was, killed);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST_F(WorkersThatLiveOn, AHungOneAloneIsKilledAndReplaced) {
  for (std::uint64_t seed = 1; seed <= kSeatSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    begin_with(world, 100);
    const auto was = before(world);
    const auto [node, local_rank] = some_worker(world);
    world.node_of(node->key()).workers().hang(local_rank);
    world.worker_ended(was.round, false, node->round().rank_first + local_rank);
    run(world, 30s);
    expect_only_one_is_new(was, {node, local_rank});
    ASSERT_FALSE(HasFatalFailure());
  }
}

// Those that run no elastic program are signalled, and started again.
TEST_F(WorkersThatLiveOn, KeepTheirProcessesBesideOthersThatDoNot) {
  std::size_t kept = 0, replaced = 0;
  for (std::uint64_t seed = 1; seed <= kSeatSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    begin_with(world, 50);
    const auto was = before(world);
    const auto killed = some_worker(world);
    std::map<Place, bool> takes_seats;
    for (const auto& [place, incarnation] : was.incarnations)
      takes_seats[place] = place.first->workers().takes_seats(place.second) && place != killed;
    kill(world, killed);
    run(world, 30s);
    for (const auto& [place, incarnation] : was.incarnations) {
      const auto& workers = place.first->workers();
      ASSERT_TRUE(workers.do_all_work());
      ASSERT_EQ(workers.incarnation(place.second) == incarnation, takes_seats[place]) << place.first->name();
      ++(takes_seats[place] ? kept : replaced);
    }
  }
  EXPECT_GT(kept, kSeatSeeds);
  EXPECT_GT(replaced, kSeatSeeds);
}

// It is told that the round is over, and does not leave it: after the grace it is killed, and nobody else.
TEST_F(WorkersThatLiveOn, WhoDoesNotLeaveIsKilledAfterTheGrace) {
  for (std::uint64_t seed = 1; seed <= kSeatSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, false);
    world.job.workers.ignores_term_percent = 100;
    begin_with(world, 100);
    world.job.collective_timeout_min = world.job.collective_timeout_max = 10s;  // they find no rank missing
    const auto was = before(world);
    const auto killed = some_worker(world);
    kill(world, killed);
    run(world, world.job.grace - 200ms);
    for (const auto& [place, incarnation] : was.incarnations)
      ASSERT_EQ(place.first->workers().does_work(place.second), place != killed) << place.first->name();
    run(world, 30s);
    for (const auto& [place, incarnation] : was.incarnations)
      ASSERT_NE(place.first->workers().incarnation(place.second), incarnation) << place.first->name();
    for (const auto* node : world.nodes_alive()) ASSERT_TRUE(node->workers().do_all_work()) << node->name();
  }
}

TEST_F(WorkersThatLiveOn, CommitOnFromWhatTheyHave) {
  World world(1, false);
  begin_with(world, 100);
  const auto killed = some_worker(world);
  ASSERT_EQ(killed.first->workers().commits(killed.second), 1U);
  kill(world, killed);
  run(world, 30s);
  for (const auto* node : world.nodes_alive())
    for (int local_rank = 0; local_rank < node->workers().count(); ++local_rank)
      EXPECT_EQ(node->workers().commits(local_rank), 2U) << node->name() << " local rank " << local_rank;
}

}  // namespace
}  // namespace ddp::simulation
