#include "ddp/weighted_sampler.hpp"

#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/sampler_properties.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace {

using ddp::InvalidArgument;
using ddp::SamplerPosition;
using ddp::Tail;
using ddp::WeightedSampler;
using ddp::WeightedSamplerOptions;
using ddp::test::Dice;
using ddp::test::Indices;

WeightedSamplerOptions weighted(std::vector<double> weights, std::size_t draw_count, bool replacement = true) {
  WeightedSamplerOptions options;
  options.weights = std::move(weights);
  options.draw_count = draw_count;
  options.replacement = replacement;
  return options;
}

WeightedSamplerOptions random_weights(Dice& dice) {
  WeightedSamplerOptions options;
  options.replacement = dice.coin();
  options.weights.resize(dice.from_to(1, 40));
  std::size_t not_zero = 0;
  for (double& weight : options.weights) {
    weight = dice.from_to(0, 3) == 0 ? 0.0 : static_cast<double>(dice.from_to(1, 1000)) / 7;
    if (weight > 0) ++not_zero;
  }
  if (not_zero == 0) {
    not_zero = 1;
    options.weights[0] = 1;
  }
  options.draw_count = dice.from_to(1, options.replacement ? 100 : not_zero);
  options.seed = dice.from_to(0, 1000);
  options.tail = static_cast<Tail>(dice.from_to(0, 2));
  return options;
}

TEST(WeightedSampler, RanksShareOneDraw) {
  Dice dice(5);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const WeightedSamplerOptions options = random_weights(dice);
    const auto make = [&](int replicas, int rank) {
      WeightedSamplerOptions own = options;
      own.replicas = replicas;
      own.rank = rank;
      return WeightedSampler(own);
    };
    const WeightedSampler alone = make(1, 0);
    const Indices order = alone.indices(2);
    ASSERT_EQ(order.size(), options.draw_count);
    SamplerPosition from = alone.start(2);
    ASSERT_EQ(ddp::test::taken_with_changing_ranks(make, from, dice), order);
    const auto replicas = static_cast<int>(dice.from_to(1, 9));
    ASSERT_EQ(make(replicas, replicas - 1).indices(2).size(), make(replicas, replicas - 1).size());
    ddp::test::expect_shares_of(order, make, from, replicas, options.tail);
    from.taken = dice.from_to(0, order.size());
    ddp::test::expect_shares_of(order, make, from, replicas, options.tail);
  }
}

TEST(WeightedSampler, NeverDrawsASampleOfWeightZero) {
  Dice dice(6);
  for (int i = 0; i < 300; ++i) {
    const WeightedSamplerOptions options = random_weights(dice);
    for (const std::int64_t index : WeightedSampler(options).indices(0)) {
      ASSERT_LT(static_cast<std::size_t>(index), options.weights.size());
      ASSERT_GT(options.weights[static_cast<std::size_t>(index)], 0);
    }
  }
}

TEST(WeightedSampler, DrawsEachSampleOnceWithoutReplacement) {
  Dice dice(7);
  for (int i = 0; i < 300; ++i) {
    WeightedSamplerOptions options = random_weights(dice);
    options.replacement = false;
    Indices not_zero;
    for (std::size_t j = 0; j < options.weights.size(); ++j) {
      if (options.weights[j] > 0) not_zero.push_back(static_cast<std::int64_t>(j));
    }
    options.draw_count = not_zero.size();
    ASSERT_EQ(ddp::test::sorted(WeightedSampler(options).indices(1)), not_zero);
  }
}

TEST(WeightedSampler, DrawsAsOftenAsTheWeightsSay) {
  const Indices draws = WeightedSampler(weighted({1, 0, 3, 4}, 80'000)).indices(0);
  std::map<std::int64_t, int> counts;
  for (const std::int64_t index : draws) ++counts[index];
  EXPECT_EQ(counts.count(1), 0U);
  EXPECT_NEAR(counts[0], 10'000, 500);  // the standard deviations are below 150
  EXPECT_NEAR(counts[2], 30'000, 700);
  EXPECT_NEAR(counts[3], 40'000, 700);
}

TEST(WeightedSampler, DrawsAmongThoseLeftWithoutReplacement) {
  // Of the weights 1, 2, 5 the order (a, b, c) has the probability a/8 * b/(8 - a).
  const double weights[] = {1, 2, 5};
  std::map<Indices, int> counts;
  constexpr int kEpochs = 40'000;
  const WeightedSampler sampler(weighted({1, 2, 5}, 3, false));
  for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) ++counts[sampler.indices(epoch)];
  EXPECT_EQ(counts.size(), 6U);
  for (const auto& [order, count] : counts) {
    const double first = weights[order[0]];
    const double second = weights[order[1]];
    const double probability = first / 8 * second / (8 - first);
    const double deviation = std::sqrt(kEpochs * probability * (1 - probability));
    EXPECT_NEAR(count, kEpochs * probability, 5 * deviation) << order[0] << " " << order[1];
  }
}

TEST(WeightedSampler, DrawsFromWeightsOfAnySize) {
  const double tiny = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(ddp::test::sorted(WeightedSampler(weighted({tiny, 0, 1e300, 1, tiny}, 4, false)).indices(0)),
            (Indices{0, 2, 3, 4}));
  EXPECT_THAT(WeightedSampler(weighted({0, 0, tiny, -0.0}, 3)).indices(0), testing::Each(2));
}

TEST(WeightedSampler, DrawsAnewForEachSeedAndEpoch) {
  WeightedSamplerOptions options = weighted(std::vector<double>(50, 1), 50);
  for (const bool replacement : {true, false}) {
    options.replacement = replacement;
    options.seed = 5;
    const WeightedSampler five(options);
    options.seed = 7;
    const WeightedSampler seven(options);
    EXPECT_NE(five.indices(0), seven.indices(0));
    EXPECT_NE(five.indices(0), five.indices(1));
    EXPECT_NE(five.indices(2), seven.indices(0)) << "the seed and the epoch must not add up";
    EXPECT_EQ(five.indices(1), five.indices(1));
  }
}

TEST(WeightedSampler, DrawsStayTheSameBetweenVersions) {
  const WeightedSampler with(weighted({1, 2, 3, 0, 4.5}, 12));
  EXPECT_THAT(with.indices(0), testing::ElementsAre(4, 4, 4, 0, 1, 1, 2, 0, 4, 4, 1, 2));
  EXPECT_THAT(with.indices(1), testing::ElementsAre(4, 2, 2, 1, 4, 4, 2, 2, 2, 2, 0, 4));
  const WeightedSampler without(weighted({1, 2, 3, 0, 4.5, 0.1, 7}, 6, false));
  EXPECT_THAT(without.indices(0), testing::ElementsAre(6, 4, 2, 0, 1, 5));
  EXPECT_THAT(without.indices(1), testing::ElementsAre(6, 2, 1, 4, 0, 5));
  EXPECT_EQ(to_string(with.start(3)), "0-3-0-12-1-3b64d32a8ed675be");
}

TEST(WeightedSampler, RefusesPositionsOfOtherWeights) {
  const SamplerPosition position = WeightedSampler(weighted({1, 2, 3}, 3)).start(0);
  EXPECT_NO_THROW(WeightedSampler(weighted({1, 2, 3}, 3)).indices(position));
  EXPECT_THROW(WeightedSampler(weighted({1, 2, 4}, 3)).indices(position), InvalidArgument);
  EXPECT_THROW(WeightedSampler(weighted({1, 2, 3, 0}, 3)).indices(position), InvalidArgument);
  EXPECT_THROW(WeightedSampler(weighted({1, 2, 3}, 3, false)).indices(position), InvalidArgument);
  EXPECT_THROW(WeightedSampler(weighted({1, 2, 3}, 2)).indices(position), InvalidArgument);
  EXPECT_NO_THROW(WeightedSampler(weighted({0, 2}, 2)).indices(WeightedSampler(weighted({-0.0, 2}, 2)).start(0)));
}

TEST(WeightedSampler, SaysWhichWeightIsWrong) {
  for (const double wrong : {-1.5, std::numeric_limits<double>::infinity()}) {
    try {
      const WeightedSampler sampler(weighted({1, 2, wrong}, 1));
      FAIL() << "not refused: " << wrong;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("the weight of sample 2 is " + std::to_string(wrong) +
                                                    "\nwhere: WeightedSampler of rank 0\ntry:   "));
    }
  }
}

TEST(WeightedSampler, RefusesWhatIsOutOfRange) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double largest = std::numeric_limits<double>::max();
  std::vector<WeightedSamplerOptions> cases = {
      weighted({}, 1),
      weighted({0, 0}, 1),
      weighted({1, -1}, 1),
      weighted({1, infinity}, 1),
      weighted({1, std::nan("")}, 1),
      weighted({largest, largest}, 1),
      weighted({1, 2}, 0),
      weighted({1, 2, 0}, 3, false),
      weighted({1, 2}, std::numeric_limits<std::size_t>::max()),
      weighted({1}, 1),
      weighted({1}, 1),
  };
  cases[cases.size() - 2].rank = 1;
  cases[cases.size() - 1].replicas = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) EXPECT_THROW(WeightedSampler{cases[i]}, InvalidArgument) << i;
  EXPECT_NO_THROW(WeightedSampler(weighted({1, 2, 0}, 2, false)));
}

}  // namespace
