#include <ddp/metrics.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/unit/worker_runtime/rank_results.hpp"

namespace {

using ddp::Mean;
using ddp::ProcessGroup;
using ddp::Sum;
using ddp::test::results_of_ranks;
using testing::Each;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Mean, CountsEachSampleAlike) {
  for (int size = 1; size <= 4; ++size) {
    const auto results = results_of_ranks(size, [](ProcessGroup world) {
      // Rank r has 2 r + 1 samples of the value r, in two batches.
      Mean mean;
      mean.add(world.rank(), world.rank());
      mean.add(world.rank(), world.rank() + 1);
      const double first = mean.read(world);
      const double again = mean.read(world);  // nothing was forgotten
      mean.add(100);
      const double more = mean.read(world);
      mean.reset();
      mean.add(world.rank() == 0 ? 7 : kNan, world.rank() == 0 ? 1 : 0);
      return std::to_string(first) + " " + std::to_string(again) + " " + std::to_string(more) + " " +
             std::to_string(mean.read(world));
    });
    double sum = 0;
    double samples = 0;
    for (int rank = 0; rank < size; ++rank) {
      sum += rank * (2 * rank + 1);
      samples += 2 * rank + 1;
    }
    const std::string mean = std::to_string(sum / samples);
    EXPECT_THAT(results, Each(mean + " " + mean + " " + std::to_string((sum + 100 * size) / (samples + size)) + " " +
                              std::to_string(7.0)));
  }
}

TEST(Mean, IsNanIfNoRankHasSamples) {
  for (int size = 1; size <= 4; ++size) {
    const auto results = results_of_ranks(size, [](ProcessGroup world) {
      Mean empty;
      Mean only_empty_batches;
      only_empty_batches.add(5, 0);
      const bool are_nan = std::isnan(empty.read(world)) && std::isnan(only_empty_batches.read(world));
      return std::string(are_nan ? "nan" : "a number");
    });
    EXPECT_THAT(results, Each("nan"));
  }
}

TEST(Mean, TellsOfANanOfAnyRank) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    Mean mean;
    mean.add(world.rank() == 1 ? kNan : 1);
    return std::string(std::isnan(mean.read(world)) ? "nan" : "a number");
  });
  EXPECT_THAT(results, Each("nan"));
}

TEST(Mean, RefusesNumbersOfSamplesThatAreNone) {
  for (const double samples : {-1.0, kNan, std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(Mean().add(1, samples), ddp::InvalidArgument) << samples;
  }
}

TEST(Sum, AddsUpOverAllRanks) {
  for (int size = 1; size <= 4; ++size) {
    const auto results = results_of_ranks(size, [](ProcessGroup world) {
      Sum sum;
      const double empty = sum.read(world);
      sum.add(0.5);
      sum.add(world.rank());
      const double first = sum.read(world);
      const double again = sum.read(world);
      sum.reset();
      return std::to_string(empty) + " " + std::to_string(first) + " " + std::to_string(again) + " " +
             std::to_string(sum.read(world));
    });
    const std::string want = std::to_string(0.5 * size + size * (size - 1) / 2.0);
    EXPECT_THAT(results, Each(std::to_string(0.0) + " " + want + " " + want + " " + std::to_string(0.0)));
  }
}

}  // namespace
