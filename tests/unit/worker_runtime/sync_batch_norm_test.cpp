#include "ddp/sync_batch_norm.hpp"

#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace ddp {
namespace {

using test::results_of_ranks;
using ::testing::Each;
using ::testing::StartsWith;

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// What batch normalisation of one joined batch gives, straight from the definition. Gradients are those of the loss
// sum(of_y * y).
struct Joined {
  Doubles y, of_x, of_weight, of_bias, running_mean, running_variance;
};

Joined normalise(const BatchShape& shape, const Doubles& x, const Doubles& of_y, const Doubles& weight,
                 const Doubles& bias) {
  constexpr double kEpsilon = 1e-5, kMomentum = 0.1;
  Joined all{Doubles(x.size()),       Doubles(x.size()),       Doubles(shape.channels),
             Doubles(shape.channels), Doubles(shape.channels), Doubles(shape.channels)};
  for (std::size_t channel = 0; channel < shape.channels; ++channel) {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i / shape.points % shape.channels == channel) places.push_back(i);
    }
    const auto n = static_cast<double>(places.size());
    double mean = 0, variance = 0, of_bias = 0, of_weight = 0;
    for (const std::size_t i : places) mean += x[i] / n;
    for (const std::size_t i : places) variance += (x[i] - mean) * (x[i] - mean) / n;
    const double deviation = std::sqrt(variance + kEpsilon);
    for (const std::size_t i : places) {
      const double normal = (x[i] - mean) / deviation;
      all.y[i] = normal * weight[channel] + bias[channel];
      of_bias += of_y[i];
      of_weight += of_y[i] * normal;
    }
    for (const std::size_t i : places) {
      const double normal = (x[i] - mean) / deviation;
      all.of_x[i] = weight[channel] / deviation * (of_y[i] - of_bias / n - normal * of_weight / n);
    }
    all.of_weight[channel] = of_weight;
    all.of_bias[channel] = of_bias;
    all.running_mean[channel] = (1 - kMomentum) * 0 + kMomentum * mean;
    all.running_variance[channel] = (1 - kMomentum) * 1 + kMomentum * variance * n / (n - 1);
  }
  return all;
}

Doubles random_numbers(std::size_t count, unsigned seed, double offset) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  Doubles numbers(count);
  for (double& each : numbers) each = static_cast<float>(offset + uniform(random));
  return numbers;
}

// "" if the numbers from `first` on are those, up to rounding.
std::string difference(const char* name, const Floats& ours, const Doubles& wanted, std::size_t first = 0) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (std::abs(ours[i] - wanted[first + i]) > 2e-5 * std::max(1.0, std::abs(wanted[first + i]))) {
      return std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(ours[i]) + " instead of " +
             std::to_string(wanted[first + i]) + "; ";
    }
  }
  return "";
}

// offset: the mean of the batch; its values are up to 1 away from that.
void expect_as_joined(const std::vector<std::size_t>& batches, std::size_t channels, std::size_t points,
                      double offset = 30) {
  const auto results = results_of_ranks(static_cast<int>(batches.size()), [&](ProcessGroup world) {
    std::size_t total = 0, before = 0;
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      if (static_cast<int>(rank) < world.rank()) before += batches[rank];
      total += batches[rank];
    }
    const BatchShape joined{total, channels, points};
    const BatchShape own{batches[static_cast<std::size_t>(world.rank())], channels, points};
    const Doubles x = random_numbers(joined.size(), 1, offset), of_y = random_numbers(joined.size(), 2, 0);
    const Doubles weight = random_numbers(channels, 3, 1), bias = random_numbers(channels, 4, 0);
    const Joined want = normalise(joined, x, of_y, weight, bias);

    const std::size_t first = before * channels * points;
    const auto part = [&](const Doubles& all) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
      return Floats(begin, begin + static_cast<std::ptrdiff_t>(own.size()));
    };
    const Floats own_x = part(x), own_of_y = part(of_y), w(weight.begin(), weight.end()), b(bias.begin(), bias.end());
    Floats y(own.size()), of_x(own.size()), of_w(channels), of_b(channels), mean(channels), variance(channels, 1);
    BatchStatistics statistics;
    sync_batch_norm_forward(world, own, own_x.data(), {w.data(), b.data(), mean.data(), variance.data()}, y.data(),
                            statistics);
    sync_batch_norm_backward(world, own, own_of_y.data(), own_x.data(), statistics, w.data(), of_x.data(), of_w.data(),
                             of_b.data());
    world.all_reduce(of_w);
    world.all_reduce(of_b);
    return difference("y", y, want.y, first) + difference("of_x", of_x, want.of_x, first) +
           difference("of_weight", of_w, want.of_weight) + difference("of_bias", of_b, want.of_bias) +
           difference("mean", mean, want.running_mean) + difference("variance", variance, want.running_variance);
  });
  EXPECT_THAT(results, Each(""));
}

TEST(SyncBatchNorm, IsThatOfTheJoinedBatch) {
  expect_as_joined({4, 4}, 3, 5);
  expect_as_joined({1, 7, 2}, 2, 1);
  expect_as_joined({0, 5, 0, 1}, 4, 2);
  expect_as_joined({1, 1}, 1, 1);
}

TEST(SyncBatchNorm, IsThatOfTheJoinedBatchIfTheMeanIsMuchLargerThanTheDeviation) {
  expect_as_joined({4, 4}, 3, 5, 1e6);
  expect_as_joined({1, 7, 2}, 2, 1, 1e6);
}

TEST(SyncBatchNorm, WorksInPlaceAndWithoutParameters) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Floats x{1.0F + static_cast<float>(world.rank()) * 2};
    BatchStatistics statistics;
    sync_batch_norm_forward(world, {1, 1, 1}, x.data(), {}, x.data(), statistics, {.epsilon = 0});
    return std::to_string(static_cast<int>(x[0])) + " " + std::to_string(static_cast<int>(statistics.mean[0])) + " " +
           std::to_string(static_cast<int>(statistics.count[0]));
  });
  EXPECT_THAT(results, ::testing::ElementsAre("-1 2 2", "1 2 2"));
}

TEST(SyncBatchNorm, RefusesABatchWithoutAVariance) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    Floats x(1);
    try {
      BatchStatistics statistics;
      sync_batch_norm_forward(world, {world.rank() == 0 ? 1U : 0U, 1, 1}, x.data(), {}, x.data(), statistics);
    } catch (const InvalidArgument& error) {
      EXPECT_THROW(
          sync_batch_norm_backward(world, {1, 1, 1}, x.data(), x.data(), {}, nullptr, x.data(), nullptr, nullptr),
          InvalidArgument);
      return error.what();
    }
    return "no error";
  });
  EXPECT_THAT(results, Each(StartsWith("a batch of 1 elements of a channel on all ranks together has no variance\n")));
}

}  // namespace
}  // namespace ddp
