#include "worker_runtime/agent_link/stop_point.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/unit/worker_runtime/soon.hpp"

namespace ddp::agent_link {
namespace {

using namespace std::chrono_literals;

using test::kPatience;

TEST(StopPoint, NobodyWaitsWhileNothingIsWanted) {
  StopPoint point;
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(point.ask(kPatience));
}

TEST(StopPoint, PromisesTheNextCallAndKeepsToIt) {
  StopPoint point;
  EXPECT_FALSE(point.ask(kPatience));
  EXPECT_FALSE(point.ask(kPatience));
  EXPECT_EQ(point.prepare(), 3u);
  EXPECT_EQ(point.prepare(), 3u);
  auto third = std::async(std::launch::async, [&] { return point.ask(kPatience); });
  point.decide(4);
  EXPECT_FALSE(third.get());
  EXPECT_TRUE(point.ask(kPatience));
  EXPECT_TRUE(point.ask(kPatience)) << "who asks again is told again";
}

TEST(StopPoint, ANewRoundForgetsWhatWasWantedAndLetsGoWhoWaits) {
  StopPoint point;
  EXPECT_EQ(point.prepare(), 1u);
  auto waiting = std::async(std::launch::async, [&] { return point.ask(kPatience); });
  while (waiting.wait_for(1ms) != std::future_status::ready) point.begin_round();
  EXPECT_FALSE(waiting.get());
  point.begin_round();
  point.decide(1);
  EXPECT_FALSE(point.ask(kPatience));
  EXPECT_EQ(point.prepare(), 2u);
}

TEST(StopPoint, WithoutADecisionTheRankGoesOn) {
  StopPoint point;
  point.prepare();
  EXPECT_FALSE(point.ask(1ms));
  point.decide(1);
  EXPECT_FALSE(point.ask(1ms)) << "it was answered otherwise before";
}

TEST(StopPoint, GivingUpLetsGoWhoWaitsAndTakesNoDecisionBack) {
  StopPoint point;
  EXPECT_EQ(point.prepare(), 1u);
  auto waiting = std::async(std::launch::async, [&] { return point.ask(kPatience); });
  point.give_up();
  EXPECT_FALSE(waiting.get());
  point.decide(1);
  EXPECT_FALSE(point.ask(kPatience)) << "nothing was promised any more";
  EXPECT_EQ(point.prepare(), 3u);
  point.decide(3);
  point.give_up();
  EXPECT_TRUE(point.ask(kPatience));
}

// Ranks that are up to one step apart, as collectives keep them, and are asked at any moment.
TEST(StopPoint, AllRanksStopAtOneStep) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    constexpr std::size_t kRanks = 4;
    std::vector<std::unique_ptr<StopPoint>> points;
    for (std::size_t i = 0; i < kRanks; ++i) points.push_back(std::make_unique<StopPoint>());
    std::mutex mutex;
    std::condition_variable moved;
    std::vector<std::uint64_t> steps(kRanks, 0);  // finished; a collective holds back who is a step ahead
    const auto train = [&](std::size_t rank) {
      for (;;) {
        if (points[rank]->ask(kPatience)) return;
        std::unique_lock lock(mutex);
        ++steps[rank];
        moved.notify_all();
        moved.wait(lock, [&] { return *std::min_element(steps.begin(), steps.end()) >= steps[rank]; });
      }
    };
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < kRanks; ++rank) threads.emplace_back(train, rank);
    {
      std::unique_lock lock(mutex);
      moved.wait(lock, [&] { return steps[seed % kRanks] >= seed; });
    }
    std::uint64_t step = 0;
    for (const auto& point : points) step = std::max(step, point->prepare());
    for (const auto& point : points) point->decide(step);
    for (auto& thread : threads) thread.join();
    for (const auto done : steps) EXPECT_EQ(done, step - 1) << seed;
  }
}

}  // namespace
}  // namespace ddp::agent_link
