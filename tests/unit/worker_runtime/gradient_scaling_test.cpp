#include "ddp/gradient_scaling.hpp"

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/copy_state.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace ddp {
namespace {

using test::results_of_ranks;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Parameters of two types.
struct TwoTypes {
  std::vector<float> weight = std::vector<float>(3);
  std::vector<double> scale = std::vector<double>(2);

  std::vector<Parameter> parameters() { return {{"weight", {3}, weight}, {"scale", {2}, scale}}; }
};

void step_of(DistributedDataParallel& model, float first, double last) {
  auto step = model.begin_step();
  static_cast<double*>(model.gradient(1).data)[1] = last;
  step.ready(1);
  model.gradient<float>(0).data()[0] = first;
  step.ready(0);
  step.finish();
}

std::string gradients_text(DistributedDataParallel& model) {
  std::ostringstream text;
  for (std::size_t i = 0; i < 3; ++i) text << model.gradient<float>(0).data()[i] << " ";
  for (std::size_t i = 0; i < 2; ++i) text << static_cast<double*>(model.gradient(1).data)[i] << " ";
  return text.str();
}

TEST(GradientScaling, NormIsOfAllGradientsAndClippingScalesThemAlike) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    TwoTypes values;
    DistributedDataParallel model(world, values.parameters());
    step_of(model, 6.0F * static_cast<float>(world.rank()), -4);
    std::ostringstream text;
    text << gradient_norm(model) << " " << clip_gradients_by_norm(model, 10) << " " << gradients_text(model) << "|"
         << clip_gradients_by_norm(model, 2.5) << " " << gradients_text(model) << "|";
    clip_gradients_by_value(model, 1.75);
    return text.str() + gradients_text(model);
  });
  EXPECT_THAT(results, Each("5 5 3 0 0 0 -4 |5 1.5 0 0 0 -2 |1.5 0 0 0 -1.75 "));
}

TEST(GradientScaling, ClippingLeavesInfiniteGradientsAlone) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    TwoTypes values;
    DistributedDataParallel model(world, values.parameters());
    std::ostringstream text;
    for (const double bad : {kInfinity, -kNan}) {
      step_of(model, 6, bad);
      EXPECT_FALSE(std::isfinite(clip_gradients_by_norm(model, 1)));
      text << model.gradient<float>(0).data()[0] << " ";
      clip_gradients_by_value(model, 2);
      text << model.gradient<float>(0).data()[0] << " " << std::abs(static_cast<double*>(model.gradient(1).data)[1])
           << " ";
    }
    EXPECT_THROW(clip_gradients_by_norm(model, 0), InvalidArgument);
    EXPECT_THROW(clip_gradients_by_value(model, kNan), InvalidArgument);
    return text.str();
  });
  EXPECT_THAT(results, Each("6 2 2 6 2 nan "));
}

TEST(LossScaler, AllRanksLeaveOutAStepWithABadGradientAndTheScaleFalls) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    TwoTypes values;
    DistributedDataParallel model(world, values.parameters());
    LossScaler scaler(world, {.scale = 8, .growth = 4, .backoff = 0.5, .growth_interval = 2});
    std::ostringstream text;
    for (const double gradient : {1.0, kInfinity, 1.0, 1.0, 1.0, kNan, 1.0}) {
      const double own = world.rank() == 1 ? gradient : 1;
      step_of(model, static_cast<float>(scaler.scale()), own * scaler.scale());
      const bool is_good = scaler.unscale(model);
      text << (is_good ? gradients_text(model).substr(0, 1) : "-") << " " << scaler.scale() << "|";
    }
    return text.str();
  });
  EXPECT_THAT(results, Each("1 8|- 4|1 4|1 16|1 16|- 8|1 8|"));
}

TEST(LossScaler, GoesOnFromItsState) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    TwoTypes values;
    DistributedDataParallel model(world, values.parameters());
    const LossScalerOptions options{.scale = 8, .growth_interval = 3};
    LossScaler begun(world, options), later(world, {.scale = 1, .growth_interval = 3});
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(begun.unscale(model));
    EXPECT_EQ(test::copy_state(begun.state(), later.state()), "");
    EXPECT_EQ(later.scale(), 16);
    EXPECT_TRUE(later.unscale(model));
    EXPECT_EQ(later.scale(), 32);
    EXPECT_THROW(LossScaler(world, {.scale = 0}), InvalidArgument);
    EXPECT_THROW(LossScaler(world, {.growth = 1}), InvalidArgument);
    EXPECT_THROW(LossScaler(world, {.backoff = 1}), InvalidArgument);
    EXPECT_THROW(LossScaler(world, {.growth_interval = 0}), InvalidArgument);
    EXPECT_THROW(LossScaler(world, {.growth = kInfinity}), InvalidArgument);
    EXPECT_THROW(LossScaler{ProcessGroup()}, InvalidArgument);
    const LossScaler moved = std::move(later);
    EXPECT_THROW(static_cast<void>(later.scale()), InvalidArgument);
    EXPECT_EQ(moved.scale(), 32);
    return "";
  });
  EXPECT_THAT(results, Each(""));
}

TEST(CheckFinite, NamesParametersAndRanksOnEveryRank) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    TwoTypes values;
    DistributedDataParallelOptions options;
    options.check_finite = true;
    DistributedDataParallel model(world, values.parameters(), options);
    std::string text;
    for (const double bad : {kInfinity, kNan}) {
      try {
        step_of(model, world.rank() == 1 ? static_cast<float>(bad) : 1, world.rank() > 0 ? -bad : 1);
      } catch (const GradientError& error) {
        text += error.what();
      }
      step_of(model, 1, 2);
      text += gradients_text(model);
    }
    return text;
  });
  const char* const sentence =
      "the gradient of parameter weight is infinite or NaN on rank 1; the gradient of parameter scale is infinite or "
      "NaN on ranks 1 and 2\n";
  EXPECT_THAT(results,
              Each(StartsWith(std::string(sentence) + "where: DistributedDataParallel::Step::finish, step 0;")));
  EXPECT_THAT(results, Each(HasSubstr(std::string("1 0 0 0 2 ") + sentence +
                                      "where: DistributedDataParallel::Step::finish, step 2;")));
}

}  // namespace
}  // namespace ddp
