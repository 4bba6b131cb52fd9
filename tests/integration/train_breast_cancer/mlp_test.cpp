#include "examples/train_breast_cancer/mlp.hpp"

#include "tests/integration/gradients.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace {

using ddp::test::Gradients;
using testing::ElementsAre;
using train::Mlp;
using train::Samples;

Samples random_samples(std::size_t count, std::size_t features, int classes) {
  std::mt19937 random(7);  // NOLINT: the same in every run
  Samples samples{features, {}, {}};
  for (std::size_t i = 0; i < count * features; ++i) {
    samples.features.push_back(static_cast<float>(random() % 2001) / 1000 - 1);
  }
  for (std::size_t i = 0; i < count; ++i) {
    samples.labels.push_back(static_cast<int>(random() % static_cast<unsigned>(classes)));
  }
  return samples;
}

TEST(Mlp, BackwardAgreesWithTheSlopeOfTheLoss) {
  Mlp mlp({5, 7, 6, 3}, 1);
  const Samples batch = random_samples(9, 5, 3);
  const auto parameters = mlp.parameters();
  Gradients gradients(parameters);
  mlp.forward(batch);
  mlp.backward(gradients.pointers, [](std::size_t) {});

  constexpr float kStep = 1e-2F;  // large, because float32 leaves about 1e-7 of noise in the loss
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    auto* values = static_cast<float*>(parameters[p].values.data);
    for (std::size_t i = 0; i < parameters[p].values.count; ++i) {
      const float value = values[i];
      values[i] = value + kStep;
      const double above = mlp.forward(batch);
      values[i] = value - kStep;
      const double below = mlp.forward(batch);
      values[i] = value;
      EXPECT_NEAR(gradients.values[p][i], (above - below) / (2 * kStep), 2e-3) << parameters[p].name << "[" << i << "]";
    }
  }
}

TEST(Mlp, BackwardAddsAndSaysReadyFromTheLastParameterToTheFirst) {
  Mlp mlp({5, 4, 3}, 1);
  const Samples batch = random_samples(4, 5, 3);
  Gradients once(mlp.parameters());
  Gradients twice(mlp.parameters());
  std::vector<std::size_t> order;
  mlp.forward(batch);
  mlp.backward(once.pointers, [&](std::size_t parameter) { order.push_back(parameter); });
  EXPECT_THAT(order, ElementsAre(3, 2, 1, 0));
  for (int i = 0; i < 2; ++i) mlp.backward(twice.pointers, [](std::size_t) {});
  for (std::size_t p = 0; p < once.values.size(); ++p) {
    for (std::size_t i = 0; i < once.values[p].size(); ++i) {
      EXPECT_NEAR(twice.values[p][i], 2 * once.values[p][i], 1e-6);
    }
  }
}

TEST(Mlp, FirstWeightsDependOnTheSeedOnly) {
  const auto weights = [](std::uint64_t seed) {
    Mlp mlp({5, 4, 3}, seed);
    const auto* values = static_cast<const float*>(mlp.parameters()[0].values.data);
    return std::vector<float>(values, values + 20);
  };
  EXPECT_EQ(weights(3), weights(3));
  EXPECT_NE(weights(3), weights(4));
  for (const float weight : weights(3)) EXPECT_LE(std::abs(weight), std::sqrt(6.0F / 5));
}

}  // namespace
