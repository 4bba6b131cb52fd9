#include "rendezvous/membership/round_start.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/round_end.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RoundStarts : public ::testing::Test {
 protected:
  // Becomes a member with the next group rank.
  Node& add(int workers, const std::string& role = "default") {
    const NodeId id{100 - count_};  // ids and group ranks differ in their order
    Node node;
    node.hello.node_key = "key-" + std::to_string(count_);
    node.hello.host_name = "h" + std::to_string(count_);
    node.hello.workers = workers;
    node.hello.role = role;
    node.seen_address = "10.0.0." + std::to_string(count_);
    nodes.add(id, std::move(node));
    nodes.make_member(id, static_cast<int>(count_++), {});
    return nodes.at(id);
  }
  std::vector<StartRound> starts() {
    std::vector<StartRound> out;
    tell_starts({}, nodes, nodes.members(), [&](NodeId, const StartRound& start) { out.push_back(start); });
    return out;
  }

  Nodes nodes;

 private:
  std::uint64_t count_ = 0;
};

TEST_F(RoundStarts, EachNodeHasTheNextRanksOfTheWorldAndOfItsRole) {
  add(2, "trainer");
  add(1, "reader");
  add(4, "trainer");
  const auto all = starts();
  ASSERT_EQ(all.size(), 3u);
  const int rank_first[] = {0, 2, 3}, role_rank_first[] = {0, 0, 2}, role_world_size[] = {6, 1, 6};
  for (int i = 0; i < 3; ++i) {
    const auto& start = all[static_cast<std::size_t>(i)];
    EXPECT_EQ(start.group_rank, i);
    EXPECT_EQ(start.group_world_size, 3);
    EXPECT_EQ(start.world_size, 7);
    EXPECT_EQ(start.rank_first, rank_first[i]);
    EXPECT_EQ(start.role_rank_first, role_rank_first[i]);
    EXPECT_EQ(start.role_world_size, role_world_size[i]);
    EXPECT_EQ(start.master_address, "10.0.0.0");
  }
}

TEST_F(RoundStarts, NodesWithAStandbyPortSucceedAnEndpointThatIsOnANodeOfTheJob) {
  add(1).hello.standby_port = 29500;
  add(1).hello.standby_port = 29501;
  add(1);
  EXPECT_THAT(starts().front().successors, IsEmpty()) << "the endpoint is on none of them and stays";
  nodes.at(nodes.members().front()).is_endpoint_host = true;
  EXPECT_THAT(starts().front().successors, ElementsAre(Successor{1, "10.0.0.1", 29501}));
  EXPECT_EQ(starts().front().host_group_rank, 0);
  EXPECT_EQ(starts().front().master_address, "") << "each node knows how it reaches the endpoint";
}

TEST_F(RoundStarts, HostThatIsLeftOutIsACandidateOnlyIfTooFewOthersAreThere) {
  add(1);
  add(1);
  const TimePoint now{1h};
  CoolDown cool_down;
  for (std::size_t n = 0; n < CoolDown::kBlames; ++n) cool_down.blame(place_of("h0", "10.0.0.0"), now);
  EXPECT_THAT(candidates(nodes, cool_down, 1, now), ElementsAre(NodeId{99}));
  EXPECT_THAT(candidates(nodes, cool_down, 2, now), ElementsAre(NodeId{99}, NodeId{100}));
  EXPECT_THAT(candidates(nodes, cool_down, 1, now + CoolDown::kOut), ElementsAre(NodeId{99}, NodeId{100}));
  nodes.at(NodeId{100}).kept_in = 3;
  nodes.at(NodeId{99}).kept_in = 2;
  EXPECT_THAT(candidates(nodes, cool_down, 1, now), ElementsAre(NodeId{99}, NodeId{100})) << "no other has the newest";
  nodes.at(NodeId{99}).kept_in = 3;
  EXPECT_THAT(candidates(nodes, cool_down, 1, now), ElementsAre(NodeId{99}));
}

TEST_F(RoundStarts, MembersAreInTheOrderOfTheirNewGroupRanks) {
  for (int n = 0; n < 3; ++n) add(1);
  const std::vector<NodeId> ids{NodeId{98}, NodeId{99}, NodeId{100}};
  EXPECT_THAT(members_of_next_round(nodes, ids, 2), ElementsAre(NodeId{100}, NodeId{99})) << "they keep their ranks";
}

TEST_F(RoundStarts, StoreOpensForTheAddressesOfAllOtherNodes) {
  add(1);
  add(1).hello.addresses = {"192.168.0.1", "192.168.1.1"};
  add(1);
  const auto requests = store_requests({}, nodes, nodes.members());
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_THAT(requests.front().allow, ElementsAre("192.168.0.1", "192.168.1.1", "10.0.0.1", "10.0.0.2"));
  EXPECT_TRUE(requests.front().is_last);
}

TEST_F(RoundStarts, ManyAddressesComeInSeveralMessages) {
  add(1);
  add(1).hello.addresses.assign(kAddressesMax, "192.168.0.1");
  const auto requests = store_requests({}, nodes, nodes.members());
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].allow.size(), kAddressesMax);
  EXPECT_FALSE(requests[0].is_last);
  EXPECT_THAT(requests[1].allow, ElementsAre("10.0.0.1"));
  EXPECT_TRUE(requests[1].is_last);
}

TEST_F(RoundStarts, NodeSpeaksOfFailuresOfItsOwnRanksOnly) {
  add(2);
  const auto& node = add(2);
  FailureReport failure;
  failure.rank = 3;
  failure.local_rank = 1;
  failure.host = "somebody else's";
  EXPECT_EQ(own_failure(node, nodes, failure).host, "h1");
  EXPECT_EQ(own_failure(node, nodes, failure).seen_address, "10.0.0.1");
  EXPECT_EQ(own_failure(node, nodes, failure).rank, 3);
  failure.rank = 0;
  EXPECT_EQ(own_failure(node, nodes, failure).rank, 3) << "rank 0 is another node's";
  failure.local_rank = 7;
  EXPECT_EQ(own_failure(node, nodes, failure).local_rank, 1);
}

TEST_F(RoundStarts, RanksAreUnknownWhileANodeBeforeIsNotHere) {
  add(2);
  auto& node = add(2);
  EXPECT_EQ(rank_first_of(node, nodes), 2);
  nodes.remove(nodes.members().front());
  EXPECT_EQ(rank_first_of(node, nodes), std::nullopt);
  StartRound told;
  told.rank_first = 2;
  node.part->told = told;
  EXPECT_EQ(rank_first_of(node, nodes), 2);
}

}  // namespace
}  // namespace ddp::rendezvous
