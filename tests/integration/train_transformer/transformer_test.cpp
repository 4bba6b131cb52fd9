#include "examples/train_transformer/transformer.hpp"

#include "examples/train_breast_cancer/input_error.hpp"
#include "tests/integration/gradients.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using ddp::test::Gradients;
using testing::ElementsAre;
using testing::HasSubstr;
using transformer::Attention;
using transformer::Batch;
using transformer::GradientSink;
using transformer::Matrix;
using transformer::Shape;
using transformer::Text;
using transformer::Transformer;

constexpr Shape kShape = {.vocabulary = 5, .context = 4, .width = 8, .heads = 2, .layers = 2};

Batch random_batch(std::size_t samples) {
  std::mt19937 random(7);  // NOLINT: the same in every run
  Batch batch{kShape.context, {}, {}};
  for (std::size_t i = 0; i < samples * kShape.context; ++i) {
    batch.inputs.push_back(random() % kShape.vocabulary);
    batch.targets.push_back(random() % kShape.vocabulary);
  }
  return batch;
}

double norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  return std::sqrt(squares);
}

TEST(Transformer, BackwardAgreesWithTheSlopeOfTheLoss) {
  Transformer model(kShape, 1);
  const Batch batch = random_batch(3);
  const auto parameters = model.parameters();
  Gradients gradients(parameters);
  model.forward(batch);
  model.backward(batch, gradients.pointers, [](std::size_t) {});

  constexpr float kStep = 1e-2F;  // large, because float32 leaves about 1e-7 of noise in the loss
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    auto* values = static_cast<float*>(parameters[p].values.data);
    std::vector<float> difference = gradients.values[p];
    for (std::size_t i = 0; i < parameters[p].values.count; ++i) {
      const float value = values[i];
      values[i] = value + kStep;
      const double above = model.forward(batch);
      values[i] = value - kStep;
      const double below = model.forward(batch);
      values[i] = value;
      difference[i] -= static_cast<float>((above - below) / (2 * kStep));
    }
    EXPECT_LT(norm(difference), 0.01 * norm(gradients.values[p])) << parameters[p].name;
  }
}

TEST(Transformer, BackwardAddsAndSaysReadyFromTheLastParameterToTheFirst) {
  Transformer model(kShape, 1);
  const Batch batch = random_batch(3);
  Gradients once(model.parameters());
  Gradients twice(model.parameters());
  std::vector<std::size_t> order;
  model.forward(batch);
  model.backward(batch, once.pointers, [&](std::size_t parameter) { order.push_back(parameter); });
  std::vector<std::size_t> want(model.parameters().size());
  std::iota(want.rbegin(), want.rend(), 0);
  EXPECT_EQ(order, want);
  for (int i = 0; i < 2; ++i) {
    model.forward(batch);
    model.backward(batch, twice.pointers, [](std::size_t) {});
  }
  for (std::size_t p = 0; p < once.values.size(); ++p) {
    for (std::size_t i = 0; i < once.values[p].size(); ++i) {
      EXPECT_NEAR(twice.values[p][i], 2 * once.values[p][i], 1e-6);
    }
  }
}

TEST(Transformer, NamesItsParametersByLayer) {
  Transformer model(kShape, 1);
  std::vector<std::string> names;
  for (const auto& parameter : model.parameters()) names.push_back(parameter.name);
  EXPECT_EQ(names.size(), 2 + 2 * 12 + 4U);
  EXPECT_THAT(names, testing::IsSupersetOf({"token.weight", "position.weight", "block.0.attention.norm.weight",
                                            "block.1.attention.qkv.weight", "block.1.mlp.down.bias", "norm.bias",
                                            "head.weight"}));
}

TEST(Transformer, FirstParametersDependOnTheSeedOnly) {
  const auto loss = [](std::uint64_t seed) { return Transformer(kShape, seed).forward(random_batch(2)); };
  EXPECT_EQ(loss(3), loss(3));
  EXPECT_NE(loss(3), loss(4));
  EXPECT_NEAR(loss(3), std::log(5), 0.1);  // no character is more probable than another at first
}

TEST(Attention, DoesNotLookAtLaterCharactersNorAtOtherSamples) {
  std::mt19937 random(5);  // NOLINT: the same in every run
  Attention attention("attention", 8, 2, 1, random);
  Matrix input, before, after;
  input.resize(8, 8);  // two samples of four characters
  for (float& value : input.values()) value = static_cast<float>(random() % 2001) / 1000 - 1;
  attention.forward(input, 4, before);
  std::fill(input.row(2), input.row(3), 3.0F);
  attention.forward(input, 4, after);
  const auto changed = [&](std::size_t row) {
    return !std::equal(before.row(row), before.row(row) + 8, after.row(row));
  };
  std::vector<bool> rows;
  for (std::size_t row = 0; row < 8; ++row) rows.push_back(changed(row));
  EXPECT_THAT(rows, ElementsAre(false, false, true, true, false, false, false, false));
}

TEST(Text, SamplesAreFollowedByTheirNextCharacters) {
  const Text text("abcabdabe");
  EXPECT_EQ(text.vocabulary(), 5U);
  EXPECT_EQ(text.sample_count(4), 2U);
  EXPECT_EQ(text.sample_count(9), 0U);
  const Batch batch = text.batch({1, 0}, 4);
  EXPECT_THAT(batch.inputs, ElementsAre(1, 3, 0, 1, 0, 1, 2, 0));
  EXPECT_THAT(batch.targets, ElementsAre(3, 0, 1, 4, 1, 2, 0, 1));
}

TEST(Text, AFileThatCannotBeReadIsNamed) {
  for (const char* path : {"nowhere.txt", "/", "/dev/null"}) {
    SCOPED_TRACE(path);
    try {
      transformer::read_text(path);
      ADD_FAILURE();
    } catch (const train::InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string("\nwhere: ") + path + "\ntry:   "));
    }
  }
}

}  // namespace
