#include "worker_runtime/process_group/rank_list.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace ddp::process_group {
namespace {

TEST(RankList, ReadsLikeASentence) {
  EXPECT_EQ(list_ranks({3}), "rank 3");
  EXPECT_EQ(list_ranks({1, 3}), "ranks 1 and 3");
  EXPECT_EQ(list_ranks({1, 2, 5}), "ranks 1, 2 and 5");
}

TEST(RankList, IsShortHoweverManyThereAre) {
  std::vector<int> ranks(1000);
  std::iota(ranks.begin(), ranks.end(), 0);
  EXPECT_EQ(list_ranks(ranks), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 984 more");
}

}  // namespace
}  // namespace ddp::process_group
