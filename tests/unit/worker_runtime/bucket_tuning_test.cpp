#include "worker_runtime/engine/plan/bucket_tuning.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace ddp::gradient_engine {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

using Time = std::chrono::steady_clock::time_point;

constexpr std::int64_t kMs = 1'000'000;

// Windows that go well, each as long as `duration` says for its number; returns where the caps changed.
template <class Duration>
std::vector<std::string> run(BucketTuning& tuning, std::uint64_t windows, Duration duration) {
  std::vector<std::string> changes;
  Time now{};
  for (std::uint64_t good = 0; good <= windows; ++good) {
    if (const auto caps = tuning.begin_window(good, now)) {
      changes.push_back(std::to_string(good) + ": " + std::to_string(caps->bytes));
    }
    now += milliseconds(duration(good));
  }
  return changes;
}

TEST(BucketTuning, TriesEachCandidateForSixWindowsAndTakesTheMedianOfFive) {
  BucketTuning tuning({{1, 10}, {2, 20}, {3, 30}});
  // The first window with new buckets is slow, and so is one of the others.
  const auto changes = run(tuning, 18, [](std::uint64_t i) { return i % 6 == 0 ? 900 : i % 6 == 3 ? 500 : 5 + i / 6; });
  EXPECT_THAT(changes, ElementsAre("6: 20", "12: 30"));
  ASSERT_TRUE(tuning.is_choice_due());
  EXPECT_THAT(tuning.times(), ElementsAre(5 * kMs, 6 * kMs, 7 * kMs));
}

TEST(BucketTuning, ChoosesByTheSlowestRank) {
  const BucketTuning tuning({{1, 10}, {2, 20}, {3, 30}});
  EXPECT_EQ(tuning.choose({5, 7, 6, 5, 4, 6}).bytes, 10U) << "of equal ones the first";
  EXPECT_EQ(tuning.choose({5, 7, 6, 9, 4, 6}).bytes, 30U);
}

TEST(BucketTuning, WindowsThatFailAreNotCounted) {
  BucketTuning tuning({{1, 10}, {2, 20}});
  Time now{};
  std::uint64_t good = 0;
  for (int i = 0; i < 11; ++i) {
    EXPECT_FALSE(tuning.begin_window(good, now));
    now += milliseconds(i % 2 == 0 ? 3 : 100);
    if (i % 2 == 0) ++good;  // each second one fails
  }
  EXPECT_TRUE(tuning.begin_window(good, now));
  EXPECT_EQ(tuning.times()[0], 3 * kMs);
}

}  // namespace
}  // namespace ddp::gradient_engine
