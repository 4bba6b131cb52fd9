#include "worker_runtime/core/failure/fingerprint.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace ddp::core {
namespace {

Collective collective(CollectiveKind kind, ConstMemoryRange input, MemoryRange output) {
  Collective result;
  result.kind = kind;
  result.input = input;
  result.output = output;
  return result;
}

TEST(Fingerprint, DescribesACall) {
  std::vector<float> four(4);
  std::vector<float> twelve(12);
  const auto text = [](Collective of) { return describe(fingerprint_of(of)); };
  auto average = collective(CollectiveKind::all_reduce, four, four);
  average.op = ReduceOp::average;
  auto from_2 = collective(CollectiveKind::broadcast, four, four);
  from_2.root = 2;
  EXPECT_EQ(text(collective(CollectiveKind::barrier, {}, {})), "barrier");
  EXPECT_EQ(text(collective(CollectiveKind::all_reduce, four, four)), "all_reduce of 4 float32 (sum)");
  EXPECT_EQ(text(average), "all_reduce of 4 float32 (average)");
  EXPECT_EQ(text(from_2), "broadcast of 4 float32 from rank 2");
  EXPECT_EQ(text(collective(CollectiveKind::all_gather, four, twelve)), "all_gather of 4 float32 per rank");
  EXPECT_EQ(text(collective(CollectiveKind::reduce_scatter, twelve, four)),
            "reduce_scatter of 4 float32 per rank (sum)");
  auto to_1 = collective(CollectiveKind::reduce, four, {});
  to_1.op = ReduceOp::max;
  to_1.root = 1;
  EXPECT_EQ(text(to_1), "reduce of 4 float32 (max) to rank 1");
  to_1.kind = CollectiveKind::gather;
  EXPECT_EQ(text(to_1), "gather of 4 float32 per rank to rank 1");
  to_1.kind = CollectiveKind::send;
  EXPECT_EQ(text(to_1), "send of 4 float32 to rank 1");
  auto from_1 = collective(CollectiveKind::scatter, {}, four);
  from_1.root = 1;
  EXPECT_EQ(text(from_1), "scatter of 4 float32 per rank from rank 1");
  from_1.kind = CollectiveKind::receive;
  EXPECT_EQ(text(from_1), "receive of 4 float32 from rank 1");
  EXPECT_EQ(text(collective(CollectiveKind::all_to_all, twelve, twelve)), "all_to_all of 12 float32 per rank");
  for (const auto& [op, name] : {std::pair{ReduceOp::product, "product"}, std::pair{ReduceOp::min, "min"}}) {
    average.op = op;
    EXPECT_EQ(text(average), std::string("all_reduce of 4 float32 (") + name + ")");
  }
  EXPECT_EQ(describe({.kind = CollectiveKind::allocate, .count = 4096}), "allocate of 4096 bytes");
  auto of_split = collective(CollectiveKind::all_gather, four, twelve);
  of_split.within = Within::split;
  EXPECT_EQ(text(of_split), "split");
}

TEST(Fingerprint, SurvivesTheControlBlock) {
  Fingerprint print;
  print.kind = CollectiveKind::broadcast;
  print.within = Within::state_sync;
  print.type = DataType::int64;
  print.op = ReduceOp::average;
  print.root = std::numeric_limits<int>::max();
  print.count = UINT64_MAX;
  print.location = 0x123456789abcdef0;
  const Fingerprint back = decode(encode(print));
  EXPECT_TRUE(same_call(back, print));
  EXPECT_EQ(back.location, print.location);
}

TEST(Fingerprint, EveryTypeOperatorAndKindSurvivesTheControlBlock) {
  for (int type = 0; type <= static_cast<int>(DataType::float8_e5m2); ++type) {
    for (int op = 0; op <= static_cast<int>(ReduceOp::premul_sum); ++op) {
      for (int kind = 0; kind <= static_cast<int>(CollectiveKind::all_to_all_v); ++kind) {
        const Fingerprint print{.kind = static_cast<CollectiveKind>(kind),
                                .type = static_cast<DataType>(type),
                                .op = static_cast<ReduceOp>(op),
                                .root = 3,
                                .count = 5};
        EXPECT_TRUE(same_call(decode(encode(print)), print)) << describe(print);
      }
    }
  }
}

TEST(Fingerprint, EveryFieldButTheLocationMakesAnotherCall) {
  const Fingerprint one{.kind = CollectiveKind::all_reduce, .count = 5};
  Fingerprint other = one;
  other.location = 4096;
  EXPECT_TRUE(same_call(one, other));
  EXPECT_FALSE(same_call(one, {.kind = CollectiveKind::broadcast, .count = 5}));
  EXPECT_FALSE(same_call(one, {.kind = CollectiveKind::all_reduce, .within = Within::split, .count = 5}));
  EXPECT_FALSE(same_call(one, {.kind = CollectiveKind::all_reduce, .type = DataType::float64, .count = 5}));
  EXPECT_FALSE(same_call(one, {.kind = CollectiveKind::all_reduce, .op = ReduceOp::average, .count = 5}));
  EXPECT_FALSE(same_call(one, {.kind = CollectiveKind::all_reduce, .root = 1, .count = 5}));
  EXPECT_FALSE(same_call(one, {.kind = CollectiveKind::all_reduce, .count = 6}));
}

TEST(Fingerprint, WhatMeansNothingForAKindDoesNotCount) {
  std::vector<double> values(3);
  auto a = collective(CollectiveKind::broadcast, values, values);
  auto b = a;
  a.op = ReduceOp::average;
  EXPECT_TRUE(same_call(fingerprint_of(a), fingerprint_of(b)));
  a.kind = b.kind = CollectiveKind::all_reduce;
  b.op = ReduceOp::average;
  a.root = 1;
  EXPECT_TRUE(same_call(fingerprint_of(a), fingerprint_of(b)));
  a.kind = b.kind = CollectiveKind::barrier;
  b.output.count = 2;
  EXPECT_TRUE(same_call(fingerprint_of(a), fingerprint_of(b)));
}

TEST(Fingerprint, FirstDifferenceHasBothSides) {
  const Fingerprint reduce{.kind = CollectiveKind::all_reduce, .count = 100};
  const Fingerprint barrier{};
  EXPECT_FALSE(first_difference({reduce}));
  EXPECT_FALSE(first_difference({reduce, reduce, reduce}));
  EXPECT_EQ(first_difference({reduce, reduce, barrier, barrier}),
            "rank 0 called all_reduce of 100 float32 (sum), rank 2 called barrier");
}

}  // namespace
}  // namespace ddp::core
