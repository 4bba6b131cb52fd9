#include "worker_runtime/engine/bucket_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace {

using ddp::DataType;
using ddp::gradient_engine::Bucket;
using ddp::gradient_engine::BucketCaps;
using ddp::gradient_engine::BucketPlan;
using ddp::gradient_engine::GradientSize;
using ddp::gradient_engine::kGradientAlignmentBytes;
using ddp::gradient_engine::plan_buckets;
using testing::ElementsAre;

using Members = std::vector<std::size_t>;

std::vector<Members> members(const BucketPlan& plan) {
  std::vector<Members> all;
  for (const Bucket& bucket : plan.buckets) all.push_back(bucket.parameters);
  return all;
}

std::vector<GradientSize> floats(const std::vector<std::size_t>& counts) {
  std::vector<GradientSize> sizes;
  for (const std::size_t count : counts) sizes.push_back({DataType::float32, count});
  return sizes;
}

TEST(BucketPlan, ClosesABucketAtOrOverItsCap) {
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
    EXPECT_EQ(members(plan_buckets(floats(c.counts), c.caps)), c.want);
  }
}

TEST(BucketPlan, KeepsDataTypesApartEachWithItsOwnCaps) {
  const std::vector<GradientSize> sizes = {{DataType::float32, 50}, {DataType::float64, 25}, {DataType::float32, 50},
                                           {DataType::float64, 25}, {DataType::float32, 50}, {DataType::float64, 25}};
  const BucketPlan plan = plan_buckets(sizes, {.first_bytes = 400, .bytes = 400});
  // Numbered by their last parameter: {5, 3} is complete at 3, {4, 2} at 2.
  EXPECT_THAT(members(plan), ElementsAre(Members{5, 3}, Members{4, 2}, Members{1}, Members{0}));
  EXPECT_EQ(plan.buckets[0].type, DataType::float64);
  EXPECT_EQ(plan.buckets[1].type, DataType::float32);
}

TEST(BucketPlan, AnOpenBucketIsNumberedByItsLastParameter) {
  // The double is taken first and its bucket never fills: it still is complete before those of parameters 1 and 0.
  const BucketPlan plan =
      plan_buckets({{DataType::float32, 10}, {DataType::float32, 10}, {DataType::float64, 1}}, {40, 40});
  EXPECT_THAT(members(plan), ElementsAre(Members{2}, Members{1}, Members{0}));
}

TEST(BucketPlan, AlignsGradientsAndAddsAFlag) {
  const BucketPlan plan = plan_buckets(floats({3, 16, 17}), {1000, 1000});
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_EQ(plan.slots[2].offset_bytes, 0U);
  EXPECT_EQ(plan.slots[1].offset_bytes, 128U);  // 17 floats are 68 bytes
  EXPECT_EQ(plan.slots[0].offset_bytes, 192U);
  EXPECT_EQ(plan.buckets[0].count, 192U / 4 + 3 + 1);
  EXPECT_EQ(plan.buckets[0].flag(), 51U);
  EXPECT_EQ(plan.buckets[0].bytes(), 208U);
}

TEST(BucketPlan, HoldsItsRulesForAnyModel) {
  std::mt19937 random(1);  // NOLINT: the same models in every run
  for (int round = 0; round < 500; ++round) {
    std::vector<GradientSize> sizes(random() % 20);
    for (GradientSize& size : sizes) {
      size = {random() % 3 == 0 ? DataType::float64 : DataType::float32, random() % 300};
    }
    const BucketPlan plan = plan_buckets(sizes, {random() % 1000, random() % 2000});
    std::vector<int> seen(sizes.size());
    std::size_t last = sizes.size();
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      const Bucket& bucket = plan.buckets[b];
      ASSERT_FALSE(bucket.parameters.empty());
      ASSERT_LT(bucket.parameters.back(), last);
      last = bucket.parameters.back();
      std::size_t end_bytes = 0;
      for (const std::size_t parameter : bucket.parameters) {
        ++seen[parameter];
        ASSERT_EQ(sizes[parameter].type, bucket.type);
        ASSERT_EQ(plan.slots[parameter].bucket, b);
        ASSERT_EQ(plan.slots[parameter].offset_bytes % kGradientAlignmentBytes, 0U);
        ASSERT_GE(plan.slots[parameter].offset_bytes, end_bytes);
        end_bytes = plan.slots[parameter].offset_bytes + sizes[parameter].count * size_of(bucket.type);
      }
      ASSERT_EQ(bucket.flag() * size_of(bucket.type), end_bytes);
    }
    ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
  }
}

}  // namespace
