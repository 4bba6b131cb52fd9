#include "rendezvous/membership/group_ranks.hpp"

#include <gtest/gtest.h>

#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace ddp::rendezvous {
namespace {

TEST(NaturalOrder, ComparesNumbersAsNumbers) {
  const char* ordered[] = {"a", "gpu2", "gpu10", "gpu10-a", "gpu11", "node1", "node02", "node3"};
  for (std::size_t i = 0; i + 1 < std::size(ordered); ++i) {
    EXPECT_TRUE(is_before_naturally(ordered[i], ordered[i + 1])) << ordered[i];
    EXPECT_FALSE(is_before_naturally(ordered[i + 1], ordered[i])) << ordered[i];
  }
  EXPECT_FALSE(is_before_naturally("x7", "x7"));
}

TEST(GiveGroupRanks, HeldRankGoesBeforeAnyWish) {
  using Ranks = std::vector<std::size_t>;
  const auto candidate = [](const std::string& host_name, std::optional<int> held, std::optional<int> wish) {
    return RankCandidate{held, wish, false, host_name};
  };
  const auto holds_0 = candidate("a", 0, {}), wishes_0 = candidate("b", {}, 0);
  EXPECT_EQ(give_group_ranks({wishes_0, holds_0}, 2), (Ranks{1, 0})) << "a newcomer takes no rank that a node holds";
  EXPECT_EQ(give_group_ranks({wishes_0, holds_0}, 1), (Ranks{1})) << "a newcomer makes no holder of a rank a spare";
  const auto newcomer = candidate("c", {}, {}), holds_1_wishes_0 = candidate("d", 1, 0);
  EXPECT_EQ(give_group_ranks({newcomer, holds_1_wishes_0}, 2), (Ranks{0, 1})) << "a node does not move to its wish";
}

TEST(GiveGroupRanks, NodesWithOlderWorkGoBeforeThoseWithNone) {
  using Ranks = std::vector<std::size_t>;
  const RankCandidate endpoint{{}, 0, true, "a"}, returned{{}, {}, false, "c", true}, member{1, {}, false, "b"};
  EXPECT_EQ(give_group_ranks({endpoint, returned, member}, 2), (Ranks{1, 2}));
  EXPECT_EQ(give_group_ranks({endpoint, returned, member}, 1), (Ranks{2})) << "it has newer work";
  const RankCandidate newest{{}, {}, false, "d", false, true};
  EXPECT_EQ(give_group_ranks({member, newest}, 1), (Ranks{1}));
}

}  // namespace
}  // namespace ddp::rendezvous
