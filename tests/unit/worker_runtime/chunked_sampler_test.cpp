#include "ddp/chunked_sampler.hpp"

#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/sampler_properties.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace {

using ddp::ChunkedSampler;
using ddp::ChunkedSamplerOptions;
using ddp::equal_chunks;
using ddp::InvalidArgument;
using ddp::SamplerPosition;
using ddp::Tail;
using ddp::test::Dice;
using ddp::test::Indices;

ChunkedSamplerOptions chunked(std::vector<std::size_t> chunk_sizes, int replicas = 1, int rank = 0) {
  ChunkedSamplerOptions options;
  options.chunk_sizes = std::move(chunk_sizes);
  options.replicas = replicas;
  options.rank = rank;
  return options;
}

ChunkedSampler chunked_on(ChunkedSamplerOptions options, int replicas, int rank) {
  options.replicas = replicas;
  options.rank = rank;
  return ChunkedSampler(options);
}

ChunkedSamplerOptions random_chunks(Dice& dice) {
  ChunkedSamplerOptions options;
  options.chunk_sizes.resize(dice.from_to(1, 12));
  for (std::size_t& size : options.chunk_sizes) size = dice.from_to(0, 10);
  options.chunk_sizes[0] += 1;
  options.shuffle = dice.from_to(0, 3) != 0;
  options.seed = dice.from_to(0, 1000);
  options.window_chunks = dice.from_to(1, 4);
  options.partitions = dice.from_to(1, 9);
  options.tail = static_cast<Tail>(dice.from_to(0, 2));
  return options;
}

std::size_t sum_of(const std::vector<std::size_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

// Which chunk each sample is in.
std::vector<std::size_t> chunks_by_sample(const std::vector<std::size_t>& sizes) {
  std::vector<std::size_t> chunks;
  for (std::size_t chunk = 0; chunk < sizes.size(); ++chunk) chunks.insert(chunks.end(), sizes[chunk], chunk);
  return chunks;
}

TEST(ChunkedSampler, TakesEachSampleOnceWithAnyNumberOfRanks) {
  Dice dice(8);
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE(i);
    const ChunkedSamplerOptions options = random_chunks(dice);
    const auto make = [&](int replicas, int rank) { return chunked_on(options, replicas, rank); };
    const Indices order = make(1, 0).indices(3);
    ASSERT_EQ(ddp::test::sorted(order), ddp::test::counted_up(sum_of(options.chunk_sizes)));
    SamplerPosition from = make(1, 0).start(3);
    ASSERT_EQ(ddp::test::taken_with_changing_ranks(make, from, dice), order);
    const auto replicas = static_cast<int>(dice.from_to(1, 9));
    ASSERT_EQ(make(replicas, replicas - 1).indices(3).size(), make(replicas, replicas - 1).size());
    ddp::test::expect_shares_of(order, make, from, replicas, options.tail);
    from.taken = dice.from_to(0, order.size());
    ddp::test::expect_shares_of(order, make, from, replicas, options.tail);
  }
}

TEST(ChunkedSampler, GoesOnWithThePartitionsOfThePosition) {
  Dice dice(9);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    ChunkedSamplerOptions options = random_chunks(dice);
    options.partitions = 0;  // as many as ranks, so another order on each number of ranks
    const auto make = [&](int replicas, int rank) { return chunked_on(options, replicas, rank); };
    const auto replicas = static_cast<int>(dice.from_to(1, 6));
    const SamplerPosition start = make(replicas, 0).start(1);
    ASSERT_EQ(start.partitions, static_cast<std::uint64_t>(replicas));
    ASSERT_EQ(ddp::test::sorted(ddp::test::taken_with_changing_ranks(make, start, dice)),
              ddp::test::counted_up(sum_of(options.chunk_sizes)));
  }
}

TEST(ChunkedSampler, RanksReadChunksOfTheirOwn) {
  // 16 chunks of 10 on 4 ranks: 4 chunks for each rank, whatever divides 16 as the number of partitions.
  for (const std::uint64_t partitions : {0, 4, 8, 16}) {
    SCOPED_TRACE(partitions);
    std::set<std::size_t> seen;
    for (int rank = 0; rank < 4; ++rank) {
      ChunkedSamplerOptions options = chunked(std::vector<std::size_t>(16, 10), 4, rank);
      options.partitions = partitions;
      std::set<std::size_t> mine;
      for (const std::int64_t index : ChunkedSampler(options).indices(5)) {
        mine.insert(static_cast<std::size_t>(index) / 10);
      }
      EXPECT_EQ(mine.size(), 4U);
      seen.insert(mine.begin(), mine.end());
    }
    EXPECT_EQ(seen.size(), 16U);
  }
}

TEST(ChunkedSampler, HasNoMoreChunksOpenThanItsWindow) {
  Dice dice(10);
  for (int i = 0; i < 100; ++i) {
    SCOPED_TRACE(i);
    ChunkedSamplerOptions options = random_chunks(dice);
    options.partitions = 1;
    const std::vector<std::size_t> chunk_of = chunks_by_sample(options.chunk_sizes);
    const Indices order = ChunkedSampler(options).indices(0);
    // A chunk is open from its first sample to its last one.
    std::set<std::size_t> open;
    std::vector<std::size_t> left = options.chunk_sizes;
    for (const std::int64_t index : order) {
      const std::size_t chunk = chunk_of[static_cast<std::size_t>(index)];
      open.insert(chunk);
      ASSERT_LE(open.size(), options.window_chunks);
      if (--left[chunk] == 0) open.erase(chunk);
    }
  }
}

TEST(ChunkedSampler, ShufflesChunksAndTheirSamples) {
  ChunkedSamplerOptions options = chunked(std::vector<std::size_t>(20, 20));
  const auto chunk_order = [](const Indices& order) {
    std::vector<std::int64_t> chunks;
    for (std::size_t i = 0; i < order.size(); i += 20) chunks.push_back(order[i] / 20);
    return chunks;
  };
  const Indices order = ChunkedSampler(options).indices(0);
  const auto chunks = chunk_order(order);
  EXPECT_EQ(ddp::test::sorted(chunks), ddp::test::counted_up(20));
  EXPECT_NE(chunks, ddp::test::counted_up(20));
  std::set<std::vector<std::int64_t>> orders_within;  // of each chunk another
  for (std::size_t i = 0; i < order.size(); i += 20) {
    std::vector<std::int64_t> within;
    for (std::size_t j = i; j < i + 20; ++j) within.push_back(order[j] % 20);
    EXPECT_EQ(ddp::test::sorted(within), ddp::test::counted_up(20));
    orders_within.insert(within);
  }
  EXPECT_EQ(orders_within.size(), 20U);
  EXPECT_NE(chunk_order(ChunkedSampler(options).indices(1)), chunks);
}

TEST(ChunkedSampler, WindowMixesChunks) {
  ChunkedSamplerOptions options = chunked(std::vector<std::size_t>(8, 50));
  options.window_chunks = 4;
  const Indices order = ChunkedSampler(options).indices(0);
  std::set<std::int64_t> chunks_of_first_50;
  for (std::size_t i = 0; i < 50; ++i) chunks_of_first_50.insert(order[i] / 50);
  EXPECT_EQ(chunks_of_first_50.size(), 4U);
}

TEST(ChunkedSampler, GivesEachRankABlockWithoutShuffling) {
  ChunkedSamplerOptions options = chunked({3, 4, 3}, 2);
  options.shuffle = false;
  EXPECT_THAT(chunked_on(options, 2, 0).indices(7), testing::ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(chunked_on(options, 2, 1).indices(7), testing::ElementsAre(5, 6, 7, 8, 9));
}

TEST(ChunkedSampler, ShufflesAnewForEachSeedAndEpoch) {
  ChunkedSamplerOptions options = chunked(std::vector<std::size_t>(10, 10));
  options.seed = 5;
  const ChunkedSampler five(options);
  options.seed = 7;
  const ChunkedSampler seven(options);
  EXPECT_NE(five.indices(0), seven.indices(0));
  EXPECT_NE(five.indices(0), five.indices(1));
  EXPECT_NE(five.indices(2), seven.indices(0)) << "the seed and the epoch must not add up";
  EXPECT_EQ(five.indices(1), five.indices(1));
}

TEST(ChunkedSampler, OrdersStayTheSameBetweenVersions) {
  ChunkedSamplerOptions options = chunked({3, 0, 5, 4});
  EXPECT_THAT(ChunkedSampler(options).indices(0), testing::ElementsAre(2, 0, 1, 8, 9, 10, 11, 3, 5, 4, 7, 6));
  options.seed = 9;
  options.window_chunks = 2;
  options.partitions = 2;
  EXPECT_THAT(ChunkedSampler(options).indices(1), testing::ElementsAre(7, 0, 8, 1, 5, 11, 4, 10, 6, 2, 3, 9));
  EXPECT_EQ(to_string(ChunkedSampler(options).start(1)), "9-1-0-12-2-e2e8d7e58964e348");
}

TEST(ChunkedSampler, CutsEqualChunks) {
  EXPECT_THAT(equal_chunks(10, 4), testing::ElementsAre(4, 4, 2));
  EXPECT_THAT(equal_chunks(8, 4), testing::ElementsAre(4, 4));
  EXPECT_THAT(equal_chunks(3, 4), testing::ElementsAre(3));
  EXPECT_THAT(equal_chunks(0, 4), testing::IsEmpty());
  EXPECT_THROW(equal_chunks(3, 0), InvalidArgument);
}

TEST(ChunkedSampler, RefusesPositionsOfOtherChunks) {
  const SamplerPosition position = ChunkedSampler(chunked({3, 4})).start(0);
  EXPECT_NO_THROW(ChunkedSampler(chunked({3, 4}, 3, 2)).indices(position));
  EXPECT_THROW(ChunkedSampler(chunked({4, 3})).indices(position), InvalidArgument);
  EXPECT_THROW(ChunkedSampler(chunked({3, 5})).indices(position), InvalidArgument);
  ChunkedSamplerOptions wider = chunked({3, 4});
  wider.window_chunks = 2;
  EXPECT_THROW(ChunkedSampler(wider).indices(position), InvalidArgument);
  for (const std::uint64_t partitions : {std::uint64_t{0}, std::uint64_t{1} << 21}) {
    SamplerPosition bad = position;
    bad.partitions = partitions;
    EXPECT_THROW(ChunkedSampler(chunked({3, 4})).indices(bad), InvalidArgument);
    EXPECT_THROW(static_cast<void>(ChunkedSampler(chunked({3, 4})).after(bad, 1)), InvalidArgument);
  }
}

TEST(ChunkedSampler, RefusesWhatIsOutOfRange) {
  const std::size_t huge = std::numeric_limits<std::size_t>::max();
  std::vector<ChunkedSamplerOptions> cases = {
      chunked({}),     chunked({0, 0}),    chunked({huge}), chunked({huge / 4, huge / 4}),
      chunked({1}, 0), chunked({1}, 2, 2), chunked({1}),    chunked({1})};
  cases[cases.size() - 2].window_chunks = 0;
  cases[cases.size() - 1].partitions = (1 << 20) + 1;
  for (std::size_t i = 0; i < cases.size(); ++i) EXPECT_THROW(ChunkedSampler{cases[i]}, InvalidArgument) << i;
}

}  // namespace
