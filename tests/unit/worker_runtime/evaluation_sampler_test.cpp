#include "ddp/evaluation_sampler.hpp"

#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/sampler_properties.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace {

using ddp::EvaluationSampler;
using ddp::EvaluationSamplerOptions;
using ddp::InvalidArgument;
using ddp::SamplerPosition;
using ddp::Tail;
using ddp::test::Dice;
using ddp::test::Indices;

TEST(EvaluationSampler, CountsEachSampleOnce) {
  Dice dice(2);
  for (int i = 0; i < 300; ++i) {
    const std::size_t count = dice.from_to(1, 80);
    const auto replicas = static_cast<int>(dice.from_to(1, 12));
    SCOPED_TRACE(std::to_string(count) + " samples on " + std::to_string(replicas) + " ranks");
    Indices seen;
    std::vector<std::size_t> sizes;
    for (int rank = 0; rank < replicas; ++rank) {
      const EvaluationSampler sampler({count, replicas, rank});
      const Indices mine = sampler.indices();
      seen.insert(seen.end(), mine.begin(), mine.end());
      sizes.push_back(mine.size());
      ASSERT_EQ(sampler.sizes(), EvaluationSampler({count, replicas, 0}).sizes());
    }
    ASSERT_EQ(ddp::test::sorted(seen), ddp::test::counted_up(count));
    ASSERT_EQ(EvaluationSampler({count, replicas, 0}).sizes(), sizes);
    const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
    ASSERT_LE(*most - *least, 1U);
  }
}

TEST(EvaluationSampler, PutsGatheredElementsInOrder) {
  Dice dice(3);
  for (int i = 0; i < 100; ++i) {
    const std::size_t count = dice.from_to(1, 40);
    const auto replicas = static_cast<int>(dice.from_to(1, 9));
    Indices gathered;  // as all_gather_v makes it: one rank after the other
    for (int rank = 0; rank < replicas; ++rank) {
      const Indices mine = EvaluationSampler({count, replicas, rank}).indices();
      gathered.insert(gathered.end(), mine.begin(), mine.end());
    }
    ASSERT_EQ(EvaluationSampler({count, replicas, 0}).in_order(gathered), ddp::test::counted_up(count));
  }
  EXPECT_THROW(EvaluationSampler({5, 2, 0}).in_order(std::vector<bool>(6)), InvalidArgument);
}

TEST(EvaluationSampler, GoesOnWithAnyNumberOfRanks) {
  Dice dice(4);
  for (int i = 0; i < 200; ++i) {
    const std::size_t count = dice.from_to(1, 60);
    const auto make = [&](int replicas, int rank) { return EvaluationSampler({count, replicas, rank}); };
    const Indices order = ddp::test::counted_up(count);
    SamplerPosition from = make(1, 0).start();
    ASSERT_EQ(ddp::test::taken_with_changing_ranks(make, from, dice), order);
    from.taken = dice.from_to(0, count);
    const auto replicas = static_cast<int>(dice.from_to(1, 9));
    ddp::test::expect_shares_of(order, make, from, replicas, Tail::uneven);
    for (int rank = 0; rank < replicas; ++rank) {
      ASSERT_EQ(make(replicas, rank).indices(from).size(),
                make(replicas, 0).sizes(from)[static_cast<std::size_t>(rank)]);
    }
  }
}

TEST(EvaluationSampler, SharesStayTheSameBetweenVersions) {
  EXPECT_THAT(EvaluationSampler({8, 3, 0}).indices(), testing::ElementsAre(0, 3, 6));
  EXPECT_THAT(EvaluationSampler({8, 3, 1}).indices(), testing::ElementsAre(1, 4, 7));
  EXPECT_THAT(EvaluationSampler({8, 3, 2}).indices(), testing::ElementsAre(2, 5));
  EXPECT_THAT(EvaluationSampler({8, 3, 2}).sizes(), testing::ElementsAre(3, 3, 2));
  EXPECT_EQ(to_string(EvaluationSampler({8, 3, 0}).start()), "0-0-0-8-1-975835de1c9756ce");
}

TEST(EvaluationSampler, RefusesWhatIsOutOfRange) {
  const EvaluationSamplerOptions cases[] = {
      {0, 1, 0}, {5, 0, 0}, {5, 2, 2}, {5, 2, -1}, {std::numeric_limits<std::size_t>::max(), 1, 0},
  };
  for (const auto& options : cases) EXPECT_THROW(EvaluationSampler{options}, InvalidArgument);
  SamplerPosition beyond = EvaluationSampler({5, 1, 0}).start();
  beyond.taken = 6;
  EXPECT_THROW(EvaluationSampler({5, 1, 0}).indices(beyond), InvalidArgument);
  EXPECT_THROW(EvaluationSampler({5, 1, 0}).sizes(beyond), InvalidArgument);
  EXPECT_THROW(EvaluationSampler({6, 1, 0}).indices(EvaluationSampler({5, 1, 0}).start()), InvalidArgument);
}

}  // namespace
