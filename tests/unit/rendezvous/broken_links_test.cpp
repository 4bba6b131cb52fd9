#include "rendezvous/membership/broken_links.hpp"

#include "tests/unit/rendezvous/membership_job.hpp"

namespace ddp::rendezvous {
namespace {

// Nodes 0, 1, ... of two ranks each, all of them in a call; `unreached` by node.
std::vector<NodeLinks> nodes_that_miss(const std::vector<std::vector<int>>& unreached) {
  std::vector<NodeLinks> out;
  for (const auto& ranks : unreached) {
    const int group_rank = static_cast<int>(out.size());
    out.push_back({group_rank, 2 * group_rank, 2, ranks, true});
  }
  return out;
}

TEST(BrokenLinks, OneSideIsEnoughIfTheOtherOneWaitedToo) {
  EXPECT_THAT(broken_links(nodes_that_miss({{}, {4, 5}, {}})), ElementsAre(BrokenLink{1, 2}));
  EXPECT_THAT(broken_links(nodes_that_miss({{}, {4, 5}, {2, 3}})), ElementsAre(BrokenLink{1, 2}));
  EXPECT_THAT(broken_links(nodes_that_miss({{5}, {4}, {0, 3}})), ElementsAre(BrokenLink{0, 2}, BrokenLink{1, 2}));
  EXPECT_THAT(broken_links(nodes_that_miss({{}, {}, {}})), IsEmpty());
}

TEST(BrokenLinks, ARankThatMayHangExplainsAll) {
  auto nodes = nodes_that_miss({{}, {4, 5}, {2, 3}, {0}});
  nodes[2].were_in_call = false;
  EXPECT_THAT(broken_links(nodes), IsEmpty());
  nodes = nodes_that_miss({{}, {4, 5}, {}});
  nodes[0].were_in_call = false;
  EXPECT_THAT(broken_links(nodes), ElementsAre(BrokenLink{1, 2})) << "nobody missed that node";
}

TEST(BrokenLinks, WhatANodeSaysOfItselfOrOfNobodyIsNoLink) {
  EXPECT_THAT(broken_links(nodes_that_miss({{0, 1}, {}})), IsEmpty());
  EXPECT_THAT(broken_links(nodes_that_miss({{7}, {0}})), IsEmpty());
  EXPECT_THAT(broken_links(nodes_that_miss({{-1}, {0}})), IsEmpty());
}

TEST(BrokenLinks, ANetworkThatIsBrokenAsAWholeIsNoLink) {
  constexpr int kNodes = 50;
  std::vector<int> first_of_each;
  for (int node = 0; node < kNodes; ++node) first_of_each.push_back(2 * node);
  EXPECT_THAT(broken_links(nodes_that_miss(std::vector<std::vector<int>>(kNodes, first_of_each))), IsEmpty());
  EXPECT_EQ(broken_links(nodes_that_miss(std::vector<std::vector<int>>(
                             kNodes / 2, std::vector<int>(first_of_each.begin(), first_of_each.begin() + 25))))
                .size(),
            25U * 24U / 2U);
}

TEST(BrokenLinks, TheNodeWithFewerWorkingLinksIsLeftOutThenTheHigherGroupRank) {
  EXPECT_THAT(nodes_to_leave_out({{1, 2}}), ElementsAre(2));
  EXPECT_THAT(nodes_to_leave_out({{0, 1}, {1, 2}}), ElementsAre(1));
  EXPECT_THAT(nodes_to_leave_out({{0, 3}, {1, 2}}), ElementsAre(2, 3));
  EXPECT_THAT(nodes_to_leave_out({{0, 1}, {0, 2}, {1, 2}}), ElementsAre(1, 2));
  EXPECT_THAT(nodes_to_leave_out({}), IsEmpty());
  EXPECT_THAT(nodes_to_leave_out({{1, 2}}, {2}), ElementsAre(1)) << "the other one is to be kept";
  EXPECT_THAT(nodes_to_leave_out({{1, 2}}, {1, 2}), ElementsAre(2));
  EXPECT_THAT(nodes_to_leave_out({{0, 1}, {1, 2}}, {1}), ElementsAre(1));
}

// Three nodes of two ranks each. The two last ones do not reach each other.
class JobWithABrokenLink : public Job {
 protected:
  void begin_three(int nodes_min, int restarts_max = 0) {
    begin(nodes_min, 3, restarts_max);
    for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  }

  FailureReport left_for(int rank, std::vector<int> others) const {
    auto report = failure(rank, {Ending::Kind::left, 0, false});
    report.accused = std::move(others);
    return report;
  }

  void ends_for(std::uint64_t id, const FailureReport& report, std::vector<int> unreached, bool were_in_call = true) {
    RoundEnded ended{started.at(id).round.number, {report}, 1, false};
    ended.unreached = std::move(unreached);
    ended.were_in_call = were_in_call;
    says(id, ended);
  }

  void link_breaks(bool are_last_in_call = true) {
    says(2, RoundFailed{started.at(2).round.number, "x", {4, 5}, 5s, true});
    ends_for(2, left_for(2, {4, 5}), {4, 5});
    ends_for(1, left_for(0, {4}), {});
    ends_for(3, left_for(4, {0}), {}, are_last_in_call);
  }
};

TEST_F(JobWithABrokenLink, GoesOnWithoutOneOfTheTwoAtNoCost) {
  begin_three(2);
  link_breaks();
  EXPECT_TRUE(stopped.at(3).back().reseat) << "its workers may be needed again";
  EXPECT_EQ(group_ranks({1, 2}), (std::vector<int>{0, 1}));
  for (const std::uint64_t id : {1u, 2u}) {
    EXPECT_EQ(started.at(id).round.number, 1u);
    EXPECT_EQ(started.at(id).group_world_size, 2);
    EXPECT_EQ(started.at(id).restart_count, 0);
    EXPECT_THAT(started.at(id).why.value(), HasSubstr("hosts h2 and h3 can't reach each other"));
  }
  EXPECT_EQ(started.at(3).round.number, 0u);
  pass(CoolDown::kOut + 60s);
  EXPECT_EQ(stopped.at(1).back().round, 1u) << "it is tried again";
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  EXPECT_EQ(started.at(3).round.number, 2u);
  EXPECT_EQ(started.at(3).group_world_size, 3);
}

TEST_F(JobWithABrokenLink, TheNodeWhoseWorkersAloneHaveKeptSomethingGoesOn) {
  begin_three(2, 1);
  RoundEnded kept{0, {failure(4, exited(1))}, 1, false};
  kept.progress = {3, {}, 4s};
  says(3, kept);
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  ASSERT_EQ(started.at(3).round.number, 1u);
  link_breaks();
  EXPECT_EQ(started.at(1).round.number, 2u);
  EXPECT_EQ(started.at(2).round.number, 1u);
  EXPECT_EQ(started.at(3).round.number, 2u);
}

TEST_F(JobWithABrokenLink, TakesTheNodeInAgainOnceItsLinksWork) {
  hello.standby_port = 29501;
  begin_three(2);
  says(3, LinksWork{});
  link_breaks();
  const CheckLinks wanted{{{"10.0.0.2", 29501}}};
  EXPECT_THAT(checked[3], ElementsAre(wanted));
  EXPECT_EQ(checked.size(), 1u);
  comes_again(3, 13, {});
  EXPECT_THAT(checked[13], ElementsAre(wanted)) << "its agent may not have heard of it";
  pass(60s);
  EXPECT_EQ(stopped.at(1).back().round, 0u);
  says(13, LinksWork{});
  pass(20s);
  EXPECT_EQ(stopped.at(1).back().round, 1u);
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  ASSERT_EQ(started.count(13), 1u);
  EXPECT_EQ(started.at(13).round.number, 2u);
  comes_again(13, 23, {});
  EXPECT_EQ(checked.count(23), 0u) << "it takes part";
}

TEST_F(JobWithABrokenLink, ThatBreaksAgainSoonLeavesTheNodeOutForItsTime) {
  hello.standby_port = 29501;
  begin_three(2);
  link_breaks();
  says(3, LinksWork{});
  pass(20s);
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  ASSERT_EQ(started.at(3).round.number, 2u);
  link_breaks();
  EXPECT_EQ(checked[3].size(), 1u);
  says(3, LinksWork{});
  pass(60s);
  EXPECT_EQ(started.at(1).round.number, 3u);
  EXPECT_EQ(started.at(3).round.number, 2u);
}

TEST_F(JobWithABrokenLink, RoundsThatLeaveANodeOutAreNoCrashLoop) {
  begin_three(1, 5);
  for (int i = 0; i < 2 * CrashLoop::kFailures; ++i) {
    const auto round = started.at(1).round.number;
    RoundEnded kept{round, {left_for(0, {4})}, 1, false};
    kept.progress.commits = 0;
    kept.were_in_call = true;
    says(2, RoundFailed{round, "x", {4, 5}, 5s, true});
    ends_for(2, left_for(2, {4, 5}), {4, 5});
    says(1, kept);
    ends_for(3, left_for(4, {0}), {});
    ASSERT_EQ(started.at(1).round.number, round + 1);
    pass(CoolDown::kOut + 60s);
    for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
    ASSERT_EQ(started.at(3).round.number, round + 2);
  }
  EXPECT_EQ(started.at(1).restart_count, 0);
}

TEST_F(JobWithABrokenLink, OfAFixedNumberEndsWithAVerdictThatNamesTheHosts) {
  begin_three(3);
  link_breaks();
  for (const std::uint64_t id : {1u, 2u, 3u}) {
    EXPECT_EQ(finished.at(id).exit_code, kRendezvousFailed);
    EXPECT_THAT(finished.at(id).what.value(), HasSubstr("hosts h2 and h3 can't reach each other"));
    EXPECT_THAT(finished.at(id).try_this.value(), HasSubstr("network"));
  }
}

TEST_F(JobWithABrokenLink, OfAFixedNumberCostsARestart) {
  begin_three(3, 1);
  link_breaks();
  EXPECT_EQ(started.at(3).round.number, 1u);
  EXPECT_EQ(started.at(3).restart_count, 1);
  link_breaks();
  EXPECT_EQ(finished.at(3).exit_code, kRendezvousFailed);
}

TEST_F(JobWithABrokenLink, ARankThatHangsIsTheCauseInstead) {
  begin_three(2);
  link_breaks(false);
  EXPECT_EQ(finished.at(1).exit_code, 1);
  ASSERT_TRUE(finished.at(1).cause);
}

TEST_F(JobWithABrokenLink, AFailureForNoOtherRankIsTheCauseInstead) {
  begin_three(2);
  ends_for(2, left_for(2, {4, 5}), {4, 5});
  ends_for(1, failure(1, exited(3)), {});
  ends_for(3, left_for(4, {2, 3}), {2, 3});
  EXPECT_EQ(finished.at(1).exit_code, 3);
}

// The one that was left out may have gone to the other side of a broken network.
TEST_F(JobWithABrokenLink, DoesNotGoOnWithAMinorityThatLeavesANodeOut) {
  greater_part_only = true;
  begin(1, 4);
  for (const std::uint64_t id : {1u, 2u, 3u, 4u}) join(id, "h" + std::to_string(id), {}, id == 1);
  for (const std::uint64_t id : {1u, 2u, 3u, 4u}) says(id, RoundStarted{0});
  stores_open = false;
  ends_for(1, left_for(0, {4}), {});
  ends_for(2, left_for(2, {4, 5}), {4, 5});
  ends_for(3, left_for(4, {0}), {});
  ends_for(4, left_for(6, {2}), {});
  for (const std::uint64_t id : {2u, 4u}) falls_silent(id);
  stores_open = true;
  says(1, StoreOpened{opened.back().second.round.number, 4000});
  EXPECT_EQ(group_ranks({1, 3}), (std::vector<int>{0, 1})) << "it takes both of those that are here";
}

// A node is out already, so the one that is to be left out is needed.
TEST_F(JobWithABrokenLink, CostsARestartIfTheNodeIsNeededAfterAll) {
  begin(2, 3, 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  link_breaks();
  EXPECT_EQ(started.at(1).restart_count, 0);
  says(1, RoundFailed{1, "x", {2, 3}, 5s, true});
  ends_for(1, left_for(0, {2, 3}), {2, 3});
  ends_for(2, left_for(2, {0, 1}), {0, 1});
  EXPECT_EQ(started.at(1).round.number, 2u);
  EXPECT_EQ(started.at(1).restart_count, 1);
}

}  // namespace
}  // namespace ddp::rendezvous
