#include "worker_runtime/core/failure/rank_progress.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ddp::core {
namespace {

const RankProgress kInTheMidst{.called = 7, .started = 6, .completed = 5, .oldest = 6, .operation = "barrier"};

TEST(RankProgress, ComesOutAsItWentIn) {
  const RankProgress none;
  const RankProgress many_lines{.called = 1, .completed = 1, .operation = "two\nlines"};
  const auto all = decode_progress(encode(2, kInTheMidst) + encode(0, none) + encode(3, many_lines), 4);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[2], kInTheMidst);
  EXPECT_EQ(all[0], none);
  EXPECT_FALSE(all[1]);
  EXPECT_EQ(all[3]->operation, "two lines");
}

TEST(RankProgress, WhatIsMalformedIsPassedOver) {
  for (const char* line : {"", "\n\n", "x", "4 1 1 1 1 rank too high\n", "-1 1 1 1 1 below\n", "1 2 3\n",
                           "1 2 3 4 x y\n", "1 99999999999999999999 1 1 1 too large\n", "1"}) {
    SCOPED_TRACE(line);
    const auto all = decode_progress(line + std::string("\n") + encode(0, kInTheMidst), 4);
    ASSERT_EQ(all.size(), 4u);
    EXPECT_TRUE(all[0]);
    EXPECT_FALSE(all[1]);
  }
}

TEST(RankProgress, AnOperationIsNoLongerThanItMayBe) {
  RankProgress progress = kInTheMidst;
  progress.operation = std::string(10'000, 'x');
  const auto all = decode_progress(encode(0, progress) + encode(1, kInTheMidst), 2);
  EXPECT_EQ(all[0]->operation.size(), kOperationBytesMax);
  EXPECT_EQ(all[1], kInTheMidst);
  EXPECT_EQ(decode_progress("0 1 1 1 1 " + progress.operation, 1)[0]->operation.size(), kOperationBytesMax);
}

TEST(RankProgress, IsToldInWords) {
  EXPECT_EQ(describe(2, kInTheMidst), "rank 2 called 7, started 6, completed 5");
  EXPECT_EQ(describe(2, RankProgress{.called = 7, .started = 5, .completed = 5}), "rank 2 called 7, completed 5");
  EXPECT_EQ(describe(0, RankProgress{.called = 7, .started = 7, .completed = 7}), "rank 0 called 7 and completed it");
  EXPECT_EQ(describe(0, RankProgress{}), "rank 0 called nothing yet");
  EXPECT_EQ(describe(1, std::nullopt), "rank 1 did not answer");
}

}  // namespace
}  // namespace ddp::core
