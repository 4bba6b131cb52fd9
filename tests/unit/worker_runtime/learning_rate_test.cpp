#include <ddp/learning_rate.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

using ddp::InvalidArgument;
using ddp::LearningRate;
using ddp::LearningRateOptions;
using ddp::LearningRateState;
using ddp::RateScaling;

LearningRateOptions tuned_for_256(RateScaling scaling = RateScaling::linear) {
  LearningRateOptions options;
  options.base_rate = 0.1;
  options.base_batch = 256;
  options.scaling = scaling;
  return options;
}

TEST(LearningRate, ScalesWithTheBatch) {
  const struct {
    RateScaling scaling;
    std::uint64_t batch;
    double want;
  } cases[] = {
      {RateScaling::linear, 256, 0.1},      {RateScaling::linear, 8192, 3.2},      {RateScaling::linear, 64, 0.025},
      {RateScaling::square_root, 256, 0.1}, {RateScaling::square_root, 1024, 0.2}, {RateScaling::square_root, 64, 0.05},
      {RateScaling::none, 8192, 0.1},
  };
  for (const auto& c : cases) {
    LearningRate rate(tuned_for_256(c.scaling));
    EXPECT_DOUBLE_EQ(rate.scaled(c.batch), c.want);
    EXPECT_DOUBLE_EQ(rate.next(c.batch), c.want);
  }
}

TEST(LearningRate, WarmsUpFromTheBaseRate) {
  LearningRateOptions options = tuned_for_256();
  options.warmup_samples = 4096;
  LearningRate rate(options);
  for (const double want : {0.1, 0.175, 0.25, 0.325, 0.4, 0.4}) EXPECT_DOUBLE_EQ(rate.next(1024), want);
}

TEST(LearningRate, WarmsUpFromAGivenRate) {
  LearningRateOptions options = tuned_for_256();
  options.warmup_samples = 4096;
  options.warmup_rate = 0;
  LearningRate rate(options);
  for (const double want : {0.0, 0.1, 0.2, 0.3, 0.4, 0.4}) EXPECT_DOUBLE_EQ(rate.next(1024), want);
}

TEST(LearningRate, WarmsUpOverTheSameSamplesWithAnyNumberOfRanks) {
  LearningRateOptions options = tuned_for_256();
  options.warmup_samples = 4096;
  LearningRate rate(options);
  rate.next(1024);
  rate.next(1024);
  // Half of the warm-up is done; now half of the ranks are left.
  EXPECT_DOUBLE_EQ(rate.next(512), 0.15);
  EXPECT_DOUBLE_EQ(rate.next(512), 0.1625);
  for (int i = 0; i < 2; ++i) rate.next(512);
  EXPECT_DOUBLE_EQ(rate.next(512), 0.2);
  EXPECT_EQ(rate.state().samples, 2 * 1024U + 5 * 512U);
}

TEST(LearningRate, ChangesAtOnceWithTheNumberOfRanks) {
  LearningRate rate(tuned_for_256());
  EXPECT_DOUBLE_EQ(rate.next(1024), 0.4);
  EXPECT_DOUBLE_EQ(rate.next(2048), 0.8);
  EXPECT_DOUBLE_EQ(rate.next(512), 0.2);
}

TEST(LearningRate, StaysTheSameIfRanksChangeButTheBatchDoesNot) {
  LearningRateOptions options = tuned_for_256();
  options.change_samples = 10'000;
  LearningRate rate(options);
  for (int i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(rate.next(4 * 256), rate.next(8 * 128));
}

TEST(LearningRate, GoesGraduallyToTheRateOfAnotherBatch) {
  LearningRateOptions options = tuned_for_256();
  options.change_samples = 4096;
  LearningRate rate(options);
  for (int i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(rate.next(1024), 0.4);
  for (const double want : {0.4, 0.6, 0.8, 0.8}) EXPECT_DOUBLE_EQ(rate.next(2048), want);
  // Another change while one is under way begins where that one was.
  for (const double want : {0.8, 0.7}) EXPECT_DOUBLE_EQ(rate.next(1024), want);
  EXPECT_DOUBLE_EQ(rate.next(256), 0.6);
  EXPECT_DOUBLE_EQ(rate.next(256), 0.6 - 0.5 / 16);
}

TEST(LearningRate, GoesOnFromAState) {
  LearningRateOptions options = tuned_for_256(RateScaling::square_root);
  options.warmup_samples = 5000;
  options.warmup_rate = 0.01;
  options.change_samples = 3000;
  const std::vector<std::uint64_t> batches = {512, 512, 1024, 1024, 768, 768, 256, 256, 256, 2048, 2048, 2048, 2048};
  LearningRate uninterrupted(options);
  LearningRateState state;
  for (const std::uint64_t batch : batches) {
    LearningRate resumed(options);
    resumed.restore(state);
    EXPECT_EQ(resumed.next(batch), uninterrupted.next(batch));
    state = resumed.state();
  }
}

TEST(LearningRate, RefusesWhatIsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {0.0, -0.1, nan, std::numeric_limits<double>::infinity()}) {
    LearningRateOptions options = tuned_for_256();
    options.base_rate = bad;
    EXPECT_THROW(LearningRate{options}, InvalidArgument) << bad;
  }
  for (const double bad : {-0.1, nan}) {
    LearningRateOptions options = tuned_for_256();
    options.warmup_rate = bad;
    EXPECT_THROW(LearningRate{options}, InvalidArgument) << bad;
  }
  LearningRateOptions options = tuned_for_256();
  options.base_batch = 0;
  EXPECT_THROW(LearningRate{options}, InvalidArgument);
  EXPECT_THROW(LearningRate(tuned_for_256()).next(0), InvalidArgument);
}

}  // namespace
