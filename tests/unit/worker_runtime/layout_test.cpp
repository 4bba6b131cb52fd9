#include "worker_runtime/engine/layout/layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace {

using ddp::DataType;
using ddp::gradient_engine::Bucket;
using ddp::gradient_engine::BucketCaps;
using ddp::gradient_engine::GradientSize;
using ddp::gradient_engine::kGradientAlignmentBytes;
using ddp::gradient_engine::lay_out;
using ddp::gradient_engine::Layout;
using ddp::gradient_engine::reverse_order;
using ddp::gradient_engine::Shard;
using ddp::gradient_engine::shard_of;
using testing::ElementsAre;

constexpr std::size_t kFlagsBytes = 8;

Layout lay_out_reversed(const std::vector<GradientSize>& sizes, BucketCaps caps, std::size_t rank_count = 1) {
  return lay_out(sizes, reverse_order(sizes.size()), caps, kFlagsBytes, rank_count);
}

using Members = std::vector<std::size_t>;

std::vector<Members> members(const Layout& layout) {
  std::vector<Members> all;
  for (const Bucket& bucket : layout.buckets) all.push_back(bucket.parameters);
  return all;
}

std::vector<GradientSize> floats(const std::vector<std::size_t>& counts) {
  std::vector<GradientSize> sizes;
  for (const std::size_t count : counts) sizes.push_back({DataType::float32, count});
  return sizes;
}

TEST(Layout, ClosesABucketAtOrOverItsCap) {
  const struct {
    const char* what;
    std::vector<std::size_t> counts;  // of float32 elements, so 4 bytes each
    BucketCaps caps;
    std::vector<Members> want;
  } cases[] = {
      {"one below the cap stays open", {10, 99, 1}, {400, 400}, {{2, 1}, {0}}},
      {"exactly the cap", {10, 100}, {400, 400}, {{1}, {0}}},
      {"one element above", {10, 101}, {400, 400}, {{1}, {0}}},
      {"overshoots by most of a parameter", {5, 1000, 99}, {400, 400}, {{2, 1}, {0}}},
      {"each over the cap", {100, 200, 100, 50}, {200, 200}, {{3}, {2}, {1}, {0}}},
      {"the first cap, then the other", {10, 10, 10, 10}, {40, 80}, {{3}, {2, 1}, {0}}},
      {"all in one", {10, 10, 10}, {1 << 20, 25 << 20}, {{2, 1, 0}}},
      {"no cap: one each", {10, 10}, {0, 0}, {{1}, {0}}},
      {"padding is not counted", {1, 1, 1}, {12, 12}, {{2, 1, 0}}},
      {"nothing", {}, {40, 40}, {}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_EQ(members(lay_out_reversed(floats(c.counts), c.caps)), c.want);
  }
}

TEST(Layout, KeepsDataTypesApartEachWithItsOwnCaps) {
  const std::vector<GradientSize> sizes = {{DataType::float32, 50}, {DataType::float64, 25}, {DataType::float32, 50},
                                           {DataType::float64, 25}, {DataType::float32, 50}, {DataType::float64, 25}};
  const Layout layout = lay_out_reversed(sizes, {.first_bytes = 400, .bytes = 400});
  // Numbered by their last parameter: {5, 3} is complete at 3, {4, 2} at 2.
  EXPECT_THAT(members(layout), ElementsAre(Members{5, 3}, Members{4, 2}, Members{1}, Members{0}));
  EXPECT_EQ(layout.buckets[0].type, DataType::float64);
  EXPECT_EQ(layout.buckets[1].type, DataType::float32);
}

TEST(Layout, AnOpenBucketIsNumberedByItsLastParameter) {
  // The double is taken first and its bucket never fills: it still is complete before those of parameters 1 and 0.
  const Layout layout =
      lay_out_reversed({{DataType::float32, 10}, {DataType::float32, 10}, {DataType::float64, 1}}, {40, 40});
  EXPECT_THAT(members(layout), ElementsAre(Members{2}, Members{1}, Members{0}));
}

TEST(Layout, AlignsGradientsAndPadsBuckets) {
  const Layout layout = lay_out_reversed(floats({40, 3, 16, 17}), {300, 300}, 3);
  ASSERT_EQ(layout.buckets.size(), 1U);
  EXPECT_EQ(layout.slots[3].offset_bytes, 0U);
  EXPECT_EQ(layout.slots[2].offset_bytes, 128U);  // 17 floats are 68 bytes
  EXPECT_EQ(layout.slots[1].offset_bytes, 192U);
  EXPECT_EQ(layout.slots[0].offset_bytes, 256U);
  EXPECT_EQ(layout.buckets[0].count, 256U / 4 + 40);
  EXPECT_EQ(layout.buckets[0].padded_count, 576U / 4);  // 416 bytes, in units of 3 x 64
}

TEST(Layout, FlagsFollowTheBucketsInABucketOfTheirOwn) {
  const Layout layout = lay_out_reversed(floats({16, 17}), {0, 0}, 2);
  EXPECT_EQ(layout.buckets[0].offset_bytes, 0U);
  EXPECT_EQ(layout.buckets[0].padded_count, 32U);  // 17 floats are 68 bytes, in units of 2 x 64
  EXPECT_EQ(layout.buckets[1].offset_bytes, 128U);
  EXPECT_EQ(layout.flags_offset, 256U);
  EXPECT_EQ(layout.bytes, 256U + 64);
}

TEST(Layout, IsDescribedBucketByBucket) {
  const Layout layout =
      lay_out_reversed({{DataType::float32, 17}, {DataType::float32, 2}, {DataType::float64, 3}}, {400, 400}, 2);
  EXPECT_EQ(ddp::gradient_engine::describe(layout, {"head.weight", "head.bias", "scale"}),
            "bucket 0: float64, 24 bytes: scale\n"
            "bucket 1: float32, 132 bytes: head.bias, head.weight\n");
}

TEST(Layout, TakesParametersInTheOrderGiven) {
  const Layout layout = lay_out(floats({10, 10, 10, 10}), {2, 0, 3, 1}, {80, 80}, kFlagsBytes, 1);
  EXPECT_THAT(members(layout), ElementsAre(Members{2, 0}, Members{3, 1}));
}

TEST(Layout, HoldsItsRulesForAnyModel) {
  std::mt19937 random(1);  // NOLINT: the same models in every run
  for (int round = 0; round < 500; ++round) {
    std::vector<GradientSize> sizes(random() % 20);
    for (GradientSize& size : sizes) {
      size = {random() % 3 == 0 ? DataType::float64 : DataType::float32, random() % 300};
    }
    const std::size_t rank_count = 1 + random() % 9;
    std::vector<std::size_t> order = reverse_order(sizes.size());
    if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
    const auto place = [&](std::size_t parameter) {
      return std::find(order.begin(), order.end(), parameter) - order.begin();
    };
    const Layout layout = lay_out(sizes, order, {random() % 1000, random() % 2000}, kFlagsBytes, rank_count);
    std::vector<int> seen(sizes.size());
    std::ptrdiff_t last = -1;
    std::size_t end_of_buckets = 0;
    for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
      const Bucket& bucket = layout.buckets[b];
      ASSERT_FALSE(bucket.parameters.empty());
      ASSERT_GT(place(bucket.parameters.back()), last);
      last = place(bucket.parameters.back());
      ASSERT_EQ(bucket.offset_bytes, end_of_buckets);
      end_of_buckets += bucket.padded_count * size_of(bucket.type);
      std::size_t end_bytes = 0;
      for (const std::size_t parameter : bucket.parameters) {
        ++seen[parameter];
        ASSERT_EQ(sizes[parameter].type, bucket.type);
        ASSERT_EQ(layout.slots[parameter].bucket, b);
        ASSERT_EQ(layout.slots[parameter].offset_bytes % kGradientAlignmentBytes, 0U);
        ASSERT_GE(layout.slots[parameter].offset_bytes, end_bytes);
        end_bytes = layout.slots[parameter].offset_bytes + sizes[parameter].count * size_of(bucket.type);
      }
      ASSERT_EQ(bucket.count * size_of(bucket.type), end_bytes);
      ASSERT_GE(bucket.padded_count, bucket.count);
      ASSERT_LT((bucket.padded_count - bucket.count) * size_of(bucket.type), rank_count * kGradientAlignmentBytes);
      std::size_t owned = 0;
      for (std::size_t rank = 0; rank < rank_count; ++rank) {
        const Shard shard = shard_of(bucket, rank, rank_count);
        ASSERT_EQ(shard.first, owned);
        ASSERT_EQ(shard.count * size_of(bucket.type) % kGradientAlignmentBytes, 0U);
        owned += shard.count;
      }
      ASSERT_EQ(owned, bucket.padded_count);
    }
    ASSERT_EQ(layout.flags_offset, end_of_buckets);
    ASSERT_GE(layout.bytes, end_of_buckets + kFlagsBytes);
    ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
  }
}

}  // namespace
