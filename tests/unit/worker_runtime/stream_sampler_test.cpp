#include "ddp/stream_sampler.hpp"

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

using ddp::InvalidArgument;
using ddp::SamplerPosition;
using ddp::StreamSampler;
using ddp::StreamSamplerOptions;
using ddp::test::Dice;
using ddp::test::Indices;

std::vector<StreamSampler> all_ranks(StreamSamplerOptions options, int replicas) {
  std::vector<StreamSampler> samplers;
  for (int rank = 0; rank < replicas; ++rank) {
    options.replicas = replicas;
    options.rank = rank;
    samplers.emplace_back(options);
  }
  return samplers;
}

TEST(StreamSampler, RanksTakeOneOrderOfAnEndlessStream) {
  Dice dice(11);
  for (int i = 0; i < 100; ++i) {
    SCOPED_TRACE(i);
    const StreamSamplerOptions options = {1, 0, dice.from_to(0, 100), dice.from_to(1, 20)};
    const Indices order = StreamSampler(options).next(600);
    Indices seen;
    SamplerPosition position = StreamSampler(options).state();
    while (seen.size() < 400) {
      const auto replicas = static_cast<int>(dice.from_to(1, 6));
      const std::size_t count = dice.from_to(1, 30);
      std::vector<Indices> shares;
      std::vector<StreamSampler> samplers = all_ranks(options, replicas);
      for (StreamSampler& sampler : samplers) {
        sampler.restore(position);
        shares.push_back(sampler.next(count));
        ASSERT_EQ(shares.back().size(), count);
        ASSERT_FALSE(sampler.is_over());
        ASSERT_EQ(sampler.state().taken, seen.size() + count * static_cast<std::size_t>(replicas));
      }
      position = samplers[0].state();
      for (std::size_t place = 0; place < count; ++place) {
        for (const Indices& share : shares) seen.push_back(share[place]);
      }
    }
    ASSERT_EQ(seen, Indices(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(seen.size())));
  }
}

TEST(StreamSampler, MovesASampleLessThanAWindow) {
  for (const std::size_t window : {1, 2, 7, 64}) {
    const Indices order = StreamSampler({1, 0, 3, window}).next(64 * window);
    EXPECT_EQ(ddp::test::sorted(order), ddp::test::counted_up(64 * window));
    for (std::size_t place = 0; place < order.size(); ++place) {
      ASSERT_EQ(static_cast<std::size_t>(order[place]) / window, place / window);
    }
    EXPECT_EQ(order == ddp::test::counted_up(64 * window), window == 1);
  }
}

// Trains on a stream of `length` samples with a number of ranks that changes; the ranks agree on the length some time
// after its end has been met. Returns the samples that were there to be read, of all ranks.
Indices read_to_the_end(const StreamSamplerOptions& options, std::uint64_t length, Dice& dice) {
  Indices seen;
  SamplerPosition position = StreamSampler(options).state();
  const std::size_t agreed_after = length + dice.from_to(0, 3 * options.window);
  for (bool is_over = false; !is_over;) {
    const auto replicas = static_cast<int>(dice.from_to(1, 5));
    std::vector<StreamSampler> samplers = all_ranks(options, replicas);
    for (StreamSampler& sampler : samplers) sampler.restore(position);
    for (std::size_t batches = dice.from_to(1, 4); batches > 0; --batches) {
      const std::size_t count = dice.from_to(1, 6);
      const bool is_known = samplers[0].state().sample_count != 0;
      std::size_t least = count;
      std::size_t most = 0;
      for (StreamSampler& sampler : samplers) {
        const Indices mine = sampler.next(count);
        least = std::min(least, mine.size());
        most = std::max(most, mine.size());
        for (const std::int64_t sample : mine) {
          const bool is_there = static_cast<std::uint64_t>(sample) < length;
          if (is_there) seen.push_back(sample);
          EXPECT_TRUE(is_there || !is_known) << "behind the end: " << sample;
        }
      }
      EXPECT_LE(most - least, 1U);
      const bool ends = samplers[0].state().taken >= agreed_after || dice.from_to(0, 20) == 0;
      if (ends) {
        for (StreamSampler& sampler : samplers) sampler.end_at(length);
      }
      for (StreamSampler& sampler : samplers) EXPECT_EQ(sampler.state(), samplers[0].state());
      for (StreamSampler& sampler : samplers) EXPECT_EQ(sampler.is_over(), samplers[0].is_over());
    }
    position = samplers[0].state();
    is_over = samplers[0].is_over();
    if (is_over) {
      for (StreamSampler& sampler : samplers) EXPECT_THAT(sampler.next(3), testing::IsEmpty());
      EXPECT_EQ(samplers[0].state(), position);
    }
  }
  return seen;
}

TEST(StreamSampler, TakesEachSampleOnceWhereverTheStreamEnds) {
  Dice dice(12);
  for (int i = 0; i < 500; ++i) {
    const std::uint64_t length = dice.from_to(1, 80);
    const StreamSamplerOptions options = {1, 0, dice.from_to(0, 100), dice.from_to(1, 25)};
    SCOPED_TRACE(std::to_string(length) + " samples, window " + std::to_string(options.window));
    ASSERT_EQ(ddp::test::sorted(read_to_the_end(options, length, dice)), ddp::test::counted_up(length));
  }
}

TEST(StreamSampler, IsOverOnceNoRankHasASampleLeft) {
  // Of every last window some places are behind the end: the last calls must not come for those alone.
  Dice dice(13);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t length = dice.from_to(1, 40);
    StreamSampler sampler({1, 0, dice.from_to(0, 100), dice.from_to(1, 25)});
    sampler.end_at(length);
    while (!sampler.is_over()) ASSERT_THAT(sampler.next(dice.from_to(1, 4)), testing::Not(testing::IsEmpty()));
  }
}

TEST(StreamSampler, IsOverAtOnceIfOnlyAbsentSamplesAreLeft) {
  Dice dice(14);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t length = dice.from_to(1, 40);
    const std::size_t window = dice.from_to(1, 25);
    StreamSampler sampler({1, 0, dice.from_to(0, 100), window});
    for (std::uint64_t there = 0; there < length;) {
      if (static_cast<std::uint64_t>(sampler.next(1)[0]) < length) ++there;
    }
    sampler.end_at(length);
    ASSERT_TRUE(sampler.is_over());
    ASSERT_EQ(sampler.state().taken, (length + window - 1) / window * window);
  }
}

TEST(StreamSampler, ForgetsTheWindowOfAnotherEpoch) {
  const Indices first = StreamSampler({1, 0, 5, 50}).next(50);
  StreamSampler sampler({1, 0, 5, 50});
  EXPECT_EQ(sampler.next(50), first);
  sampler.next_epoch();
  const SamplerPosition second_epoch = sampler.state();
  const Indices second = sampler.next(50);
  EXPECT_NE(second, first);
  sampler.restore(StreamSampler({1, 0, 5, 50}).state());
  EXPECT_EQ(sampler.next(50), first);
  sampler.restore(second_epoch);
  EXPECT_EQ(sampler.next(50), second);
}

TEST(StreamSampler, ShufflesAnewForEachSeedAndEpoch) {
  StreamSampler five({1, 0, 5, 50});
  StreamSampler seven({1, 0, 7, 50});
  const Indices first = five.next(50);
  const Indices first_of_seven = seven.next(50);
  EXPECT_NE(first, first_of_seven);
  EXPECT_NE(five.next(50), first);
  five.end_at(100);
  five.next_epoch();
  EXPECT_EQ(five.state().epoch, 1U);
  EXPECT_EQ(five.state().taken, 0U);
  EXPECT_FALSE(five.is_over());
  EXPECT_NE(five.next(50), first);
  five.next_epoch();
  EXPECT_NE(five.next(50), first_of_seven) << "the seed and the epoch must not add up";
}

TEST(StreamSampler, OrderStaysTheSameBetweenVersions) {
  StreamSampler sampler({1, 0, 7, 5});
  EXPECT_THAT(sampler.next(12), testing::ElementsAre(1, 2, 3, 4, 0, 6, 5, 7, 9, 8, 13, 12));
  sampler.end_at(13);
  EXPECT_THAT(sampler.next(12), testing::ElementsAre(10, 11));
  EXPECT_EQ(to_string(sampler.state()), "7-0-15-13-1-e06b51eec968ea89");
}

TEST(StreamSampler, RefusesWhatIsOutOfRange) {
  const std::size_t huge = std::numeric_limits<std::size_t>::max();
  const StreamSamplerOptions cases[] = {{0, 0, 0, 1}, {2, 2, 0, 1}, {2, -1, 0, 1}, {1, 0, 0, 0}, {1, 0, 0, huge}};
  for (const auto& options : cases) EXPECT_THROW(StreamSampler{options}, InvalidArgument);

  StreamSampler sampler({2, 1, 0, 4});
  EXPECT_THROW(sampler.next(0), InvalidArgument);
  EXPECT_THROW(sampler.next(huge), InvalidArgument);
  EXPECT_THROW(sampler.end_at(0), InvalidArgument);
  EXPECT_THROW(sampler.end_at(huge), InvalidArgument);
  const SamplerPosition before = sampler.state();
  EXPECT_THROW(sampler.restore(StreamSampler({2, 1, 0, 5}).state()), InvalidArgument);
  EXPECT_THROW(sampler.restore(StreamSampler({2, 1, 1, 4}).state()), InvalidArgument);
  SamplerPosition beyond = before;
  beyond.taken = huge;
  EXPECT_THROW(sampler.restore(beyond), InvalidArgument);
  EXPECT_EQ(sampler.state(), before);

  sampler.end_at(9);
  sampler.end_at(9);
  EXPECT_THROW(sampler.end_at(10), InvalidArgument);
  EXPECT_THAT(sampler.next(huge), testing::SizeIs(4));  // more than there are
}

}  // namespace
