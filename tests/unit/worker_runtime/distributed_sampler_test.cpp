#include "ddp/distributed_sampler.hpp"

#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/sampler_properties.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace {

using ddp::DistributedSampler;
using ddp::DistributedSamplerOptions;
using ddp::LastBatch;
using ddp::random_permutation;
using ddp::test::Indices;

TEST(RandomPermutation, GivesPyTorchsOrder) {
  const struct {
    std::size_t count;
    std::uint64_t seed;
    Indices want;
  } cases[] = {
      {10, 0, {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}},
      {10, 1, {5, 6, 1, 2, 0, 8, 9, 3, 7, 4}},
      {10, 42, {2, 6, 1, 8, 4, 5, 0, 9, 3, 7}},
      {10, 1234, {5, 4, 8, 2, 6, 9, 1, 7, 0, 3}},
      {10, std::uint64_t{1} << 32, {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}},  // as seed 0
      {11, 0, {10, 0, 4, 3, 5, 8, 2, 1, 9, 7, 6}},
      {0, 7, {}},
      {1, 7, {0}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE("count " + std::to_string(c.count) + ", seed " + std::to_string(c.seed));
    EXPECT_EQ(random_permutation(c.count, c.seed), c.want);
  }
}

TEST(RandomPermutation, GivesPyTorchsOrderOfAThousand) {
  const Indices order = random_permutation(1000, 3);
  EXPECT_EQ(Indices(order.begin(), order.begin() + 10), (Indices{986, 114, 871, 894, 140, 885, 232, 402, 837, 674}));

  // FNV-1a over the little-endian bytes. Known values: one from FNV's own start, one from a decimal one digit shorter
  // that is also seen in programs.
  const auto fnv_1a = [&](std::uint64_t state) {
    for (const std::int64_t index : order) {
      for (int byte = 0; byte < 8; ++byte) {
        state = (state ^ ((static_cast<std::uint64_t>(index) >> (8 * byte)) & 0xff)) * 0x100000001b3;
      }
    }
    return state;
  };
  EXPECT_EQ(fnv_1a(14695981039346656037U), 0x1c558dd9e7c2c169U);
  EXPECT_EQ(fnv_1a(1469598103934665603U), 0xaadbec8fb8f7b777U);
}

TEST(RandomPermutation, RefusesCountsThatPyTorchShufflesInAnotherWay) {
  EXPECT_THROW(random_permutation(214'748'364, 0), ddp::InvalidArgument);
}

TEST(DistributedSampler, PadsWithTheFirstSamples) {
  // 11 samples on 4 ranks: 3 each, and the first of the order once more.
  const Indices order = {10, 0, 4, 3, 5, 8, 2, 1, 9, 7, 6, 10};
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    const DistributedSampler sampler({.sample_count = 11, .replicas = 4, .rank = rank});
    EXPECT_EQ(sampler.size(), 3U);
    const auto at = [&](int i) { return order[static_cast<std::size_t>(rank + 4 * i)]; };
    EXPECT_EQ(sampler.indices(0), (Indices{at(0), at(1), at(2)}));
  }
}

// PyTorch's rules written down once more, slowly: pad or cut the whole order, then take every n-th.
Indices pytorchs_indices(const DistributedSamplerOptions& o, std::uint64_t epoch) {
  Indices order(o.sample_count);
  std::iota(order.begin(), order.end(), 0);
  if (o.shuffle) order = random_permutation(o.sample_count, o.seed + epoch);
  const auto replicas = static_cast<std::size_t>(o.replicas);
  const std::size_t count = o.drop_last ? order.size() / replicas : (order.size() + replicas - 1) / replicas;
  for (std::size_t i = 0; order.size() < count * replicas; ++i) order.push_back(order[i]);
  order.resize(count * replicas);
  Indices mine;
  for (auto i = static_cast<std::size_t>(o.rank); i < order.size(); i += replicas) mine.push_back(order[i]);
  return mine;
}

TEST(DistributedSampler, AgreesWithThePlainForm) {
  for (const std::size_t count : {1, 2, 3, 7, 8, 100, 455}) {
    for (const int replicas : {1, 2, 3, 4, 8, 19}) {
      for (int rank = 0; rank < replicas; ++rank) {
        for (const int variant : {0, 1, 2, 3}) {
          const DistributedSamplerOptions options = {.sample_count = count,
                                                     .replicas = replicas,
                                                     .rank = rank,
                                                     .shuffle = (variant & 1) != 0,
                                                     .seed = 5,
                                                     .drop_last = (variant & 2) != 0};
          const DistributedSampler sampler(options);
          ASSERT_EQ(sampler.indices(3), pytorchs_indices(options, 3))
              << count << " samples, rank " << rank << " of " << replicas;
          ASSERT_EQ(sampler.indices(3).size(), sampler.size());
        }
      }
    }
  }
}

TEST(DistributedSampler, RanksShareAnEpochWithoutOverlap) {
  Indices seen;
  for (int rank = 0; rank < 5; ++rank) {
    const Indices mine = DistributedSampler({.sample_count = 100, .replicas = 5, .rank = rank, .seed = 9}).indices(4);
    seen.insert(seen.end(), mine.begin(), mine.end());
  }
  std::sort(seen.begin(), seen.end());
  Indices all(100);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

TEST(DistributedSampler, EpochAndSeedAddUp) {
  const DistributedSampler five({.sample_count = 50, .seed = 5});
  const DistributedSampler seven({.sample_count = 50, .seed = 7});
  EXPECT_EQ(five.indices(2), seven.indices(0));
  EXPECT_NE(five.indices(2), five.indices(3));
}

TEST(DistributedSampler, CutsBatches) {
  const DistributedSampler sampler({.sample_count = 7, .shuffle = false});
  EXPECT_THAT(sampler.batches(0, 3, LastBatch::keep),
              testing::ElementsAre(Indices{0, 1, 2}, Indices{3, 4, 5}, Indices{6}));
  EXPECT_THAT(sampler.batches(0, 3, LastBatch::drop), testing::ElementsAre(Indices{0, 1, 2}, Indices{3, 4, 5}));
  EXPECT_THAT(sampler.batches(0, 7, LastBatch::drop), testing::ElementsAre(Indices{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_THAT(sampler.batches(0, 8, LastBatch::drop), testing::IsEmpty());
  EXPECT_THAT(sampler.batches(0, std::numeric_limits<std::size_t>::max(), LastBatch::keep), testing::SizeIs(1));
  EXPECT_THROW(sampler.batches(0, 0, LastBatch::keep), ddp::InvalidArgument);
}

TEST(DistributedSampler, RefusesWhatIsOutOfRange) {
  const DistributedSamplerOptions cases[] = {
      {.sample_count = 0},
      {.sample_count = 5, .replicas = 0},
      {.sample_count = 5, .replicas = 2, .rank = 2},
      {.sample_count = 5, .replicas = 2, .rank = -1},
      {.sample_count = 214'748'364},
      {.sample_count = std::numeric_limits<std::size_t>::max(), .shuffle = false},
  };
  for (const auto& options : cases) EXPECT_THROW(DistributedSampler{options}, ddp::InvalidArgument);
}

}  // namespace
