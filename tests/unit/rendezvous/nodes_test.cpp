#include "rendezvous/membership/nodes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class NodesOfAJob : public ::testing::Test {
 protected:
  void add(std::uint64_t id, std::optional<int> wish = {}) {
    Node node;
    node.hello.node_key = "key-" + std::to_string(id);
    node.hello.node_rank = wish;
    nodes.add(NodeId{id}, std::move(node));
  }

  Nodes nodes;
  Nodes::TimePoint now{1h};
};

TEST_F(NodesOfAJob, NodeIsFoundByItsKeyAlsoOnAnotherConnection) {
  add(1, 7);
  nodes.set_older_round(NodeId{1}, 3);
  nodes.make_member(NodeId{1}, 0, {});
  nodes.rename(NodeId{1}, NodeId{9});
  EXPECT_EQ(nodes.find("key-1"), NodeId{9});
  EXPECT_FALSE(nodes.has(NodeId{1}));
  EXPECT_EQ(nodes.older_round(NodeId{9}), 3u);
  EXPECT_EQ(nodes.older_round(NodeId{1}), std::nullopt);
  EXPECT_TRUE(nodes.at(NodeId{9}).is_member());
  EXPECT_EQ(nodes.find(""), std::nullopt);
  EXPECT_TRUE(nodes.may_be_wished(7));
}

TEST_F(NodesOfAJob, NothingIsKeptOfARemovedNode) {
  add(1, 7);
  nodes.make_member(NodeId{1}, 0, {});
  nodes.begin_absence(NodeId{1}, {now, "reset"});
  nodes.set_older_round(NodeId{1}, 3);
  EXPECT_EQ(nodes.remove(NodeId{1}).hello.node_key, "key-1");
  EXPECT_TRUE(nodes.empty());
  EXPECT_EQ(nodes.find("key-1"), std::nullopt);
  EXPECT_EQ(nodes.member_count(), 0u);
  EXPECT_FALSE(nodes.is_absent(NodeId{1}));
  EXPECT_EQ(nodes.next_gone(), std::nullopt);
  EXPECT_EQ(nodes.older_round(NodeId{1}), std::nullopt);
  EXPECT_FALSE(nodes.may_be_wished(7));
}

TEST_F(NodesOfAJob, MembersAreInTheOrderOfTheirGroupRanks) {
  for (const std::uint64_t id : {1, 2, 3}) add(id);
  nodes.make_member(NodeId{1}, 1, {});
  nodes.make_member(NodeId{3}, 0, {});
  EXPECT_THAT(nodes.members(), ElementsAre(NodeId{3}, NodeId{1}));
  EXPECT_TRUE(nodes.has_spares());
  nodes.make_member(NodeId{2}, 2, {});
  EXPECT_FALSE(nodes.has_spares());
  nodes.make_member(NodeId{2}, 2, {});
  EXPECT_EQ(nodes.member_count(), 3u) << "once, however often it becomes one";
  nodes.forget_round();
  EXPECT_THAT(nodes.members(), IsEmpty());
  EXPECT_EQ(nodes.member_count(), 0u);
  EXPECT_EQ(nodes.at(NodeId{1}).group_rank, std::nullopt);
}

TEST_F(NodesOfAJob, NodesAreGoneWhenTheirAbsenceIsOver) {
  for (const std::uint64_t id : {1, 2, 3}) add(id);
  nodes.begin_absence(NodeId{3}, {now + 1s, "reset"});
  nodes.begin_absence(NodeId{1}, {now + 2s, "closed"});
  nodes.begin_absence(NodeId{2}, {now + 3s, "closed"});
  EXPECT_EQ(nodes.next_gone(), now + 1s);
  EXPECT_THAT(nodes.gone(now), IsEmpty());
  EXPECT_THAT(nodes.gone(now + 2s), ElementsAre(NodeId{1}, NodeId{3}));
  nodes.begin_absence(NodeId{3}, {now + 4s, "reset"});
  EXPECT_THAT(nodes.gone(now + 3s), ElementsAre(NodeId{1}, NodeId{2})) << "the last connection counts";
  EXPECT_TRUE(nodes.end_absence(NodeId{1}));
  EXPECT_FALSE(nodes.end_absence(NodeId{1}));
  EXPECT_EQ(nodes.next_gone(), now + 3s);
}

TEST_F(NodesOfAJob, SpareThatIsAbsentOrHasAnOlderRoundIsNotAvailable) {
  for (const std::uint64_t id : {1, 2, 3, 4}) add(id);
  EXPECT_EQ(nodes.count_available(), 4);
  nodes.make_member(NodeId{1}, 0, {});
  nodes.begin_absence(NodeId{1}, {now, "reset"});  // a member may come again
  nodes.begin_absence(NodeId{2}, {now, "reset"});
  nodes.set_older_round(NodeId{2}, 3);
  nodes.set_older_round(NodeId{3}, 3);
  EXPECT_EQ(nodes.count_available(), 2);
  nodes.end_older_round(NodeId{3});
  EXPECT_EQ(nodes.count_available(), 3);
}

// The searches that begin where the last one has ended, and the counts that are kept, against plain walks.
TEST_F(NodesOfAJob, CountsAndSearchesAgreeWithWalksOverAllNodes) {
  std::mt19937 dice(1);
  for (std::uint64_t id = 1; id <= 20; ++id) add(id);
  for (int i = 0; i < 5000; ++i) {
    const NodeId id{1 + dice() % 20};
    auto& node = nodes.at(id);
    switch (dice() % 6) {
      case 0: nodes.make_member(id, static_cast<int>(id), {.has_ended = dice() % 2 == 0}); break;
      case 1: nodes.end_membership(node); break;
      case 2:
        if (node.part) node.part->has_ended = true;
        break;
      case 3: nodes.begin_absence(id, {now, "reset"}); break;
      case 4: nodes.end_absence(id); break;
      default: dice() % 2 == 0 ? nodes.set_older_round(id, 1) : nodes.end_older_round(id);
    }
    std::size_t members = 0;
    int available = 0;
    bool runs = false, is_absent = false;
    for (const auto& [other, its] : nodes) {
      members += its.is_member();
      available += nodes.is_available(other, its);
      runs = runs || its.runs();
      is_absent = is_absent || (its.is_member() && nodes.is_absent(other));
    }
    ASSERT_EQ(nodes.member_count(), members);
    ASSERT_EQ(nodes.members().size(), members);
    ASSERT_EQ(nodes.count_available(), available);
    ASSERT_EQ(nodes.is_anyone_running(), runs);
    ASSERT_EQ(nodes.is_member_absent(), is_absent);
  }
}

TEST_F(NodesOfAJob, LongestGraceOfTheMembersCountsForAnHourAtMost) {
  for (const std::uint64_t id : {1, 2, 3}) add(id);
  nodes.make_member(NodeId{1}, 0, {});
  nodes.make_member(NodeId{2}, 1, {.has_ended = true});
  nodes.at(NodeId{1}).hello.grace = 10s;
  nodes.at(NodeId{2}).hello.grace = 20s;
  nodes.at(NodeId{3}).hello.grace = 30s;
  EXPECT_EQ(nodes.longest_grace(), 20s) << "no spare's";
  nodes.at(NodeId{1}).hello.grace = 3h;
  EXPECT_EQ(nodes.longest_grace(), 1h);
  nodes.at(NodeId{1}).is_endpoint_host = true;
  EXPECT_EQ(nodes.longest_grace(), 3h) << "that of the endpoint's own node is believed";
  EXPECT_THAT(nodes.running_group_ranks(), ElementsAre(0));
}

}  // namespace
}  // namespace ddp::rendezvous
