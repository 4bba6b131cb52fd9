// Nodes come and go.
#include "membership_job.hpp"

namespace ddp::rendezvous {
namespace {

TEST_F(Job, WhoDoesNotFitIsRefusedWithTheReason) {
  begin(2, 2);
  join(1, "a", 0);
  join(2, "b", 0);
  EXPECT_THAT(refused.at(2).what, AllOf(HasSubstr("node rank 0"), HasSubstr("host a")));
  join(3, "c", 2);
  EXPECT_THAT(refused.at(3).what, HasSubstr("beyond 2 nodes"));
  hello.run_id = "other";
  join(4, "d");
  EXPECT_THAT(refused.at(4).what, HasSubstr("'other'"));
  EXPECT_THAT(refused.at(4).try_this, HasSubstr("--rdzv-id"));
  hello.run_id = "job";
  hello.nodes_max = hello.nodes_min = 3;
  join(5, "e");
  EXPECT_THAT(refused.at(5).what, AllOf(HasSubstr("--nnodes=3"), HasSubstr("--nnodes=2")));
  EXPECT_TRUE(started.empty());
}

TEST_F(Job, OneOfAnotherStepIsAnotherJobUnderTheSameId) {
  more_options.slurm_run = "42.0";
  begin(2, 2);
  hello.slurm_run = "42.0.r1";
  join(1, "a");
  EXPECT_TRUE(refused.at(1).is_other_job);
  EXPECT_THAT(refused.at(1).what, AllOf(HasSubstr("'job'"), HasSubstr("step 42.0,"), HasSubstr("not 42.0.r1")));
  hello.slurm_run = "42.0";
  join(2, "b");
  hello.slurm_run = "";
  join(3, "c");
  EXPECT_EQ(refused.size(), 1u) << "who names none was told where to come";
  hello.slurm_run = "7.1";
  EXPECT_EQ(options_of(hello, {}).slurm_run, "7.1") << "of the node with which a job begins";
}

TEST_F(Job, NodesThatAreLostTogetherStopTheOthersOnce) {
  begin(2, 4);
  for (std::uint64_t id = 1; id <= 4; ++id) join(id, "host" + std::to_string(id));
  leaves(3);
  leaves(4);
  EXPECT_EQ(stopped.at(1).size(), 1u);
  EXPECT_EQ(stopped.at(2).size(), 1u);
  ends(2);
  ends(1, {}, 2);
  EXPECT_EQ(started.at(1).group_world_size, 2);
}

TEST_F(Job, ARankIsFreeAgainWhenItsNodeHasLeft) {
  begin(2, 2);
  join(1, "a", 1);
  join(2, "b", 1);
  EXPECT_THAT(refused.at(2).what, HasSubstr("node rank 1 is taken by host a"));
  leaves(1);
  join(3, "c", 1);
  join(4, "d", 0);
  EXPECT_EQ(group_ranks({4, 3}), (std::vector<int>{0, 1}));
}

TEST_F(Job, MissingNodesEndTheWaitWithTheNamesOfThoseThatCame) {
  begin(3, 3);
  join(1, "a", 0, true);
  join(2, "b", 2);
  pass(59s);
  EXPECT_TRUE(finished.empty());
  pass(1s);
  EXPECT_EQ(finished.at(1).exit_code, 77);
  EXPECT_EQ(finished.at(2).exit_code, 77);
  EXPECT_THAT(finished.at(1).what.value(),
              AllOf(HasSubstr("only 2 of 3 nodes"), HasSubstr("a (node rank 0)"), HasSubstr("b (node rank 2)")));
}

TEST_F(Job, BetweenMinimumAndMaximumItWaitsForTheLastCall) {
  begin(2, 4);
  join(1, "z", {}, true);
  EXPECT_EQ(said.back(), "waiting for 1 more node, for up to 60 s; here: z");
  pass(20s);
  begin(1, 3);
  join(1, "a", {}, true);
  EXPECT_EQ(said.back(), "waiting 10 s for up to 2 more nodes; here: a");
  pass(9s);
  EXPECT_TRUE(started.empty());
  join(2, "b");
  pass(1s);
  EXPECT_EQ(started.at(1).group_world_size, 2);
}

TEST_F(Job, TheLastCallIsCutShortWhereTheWholeWaitEnds) {
  begin(2, 3);
  join(1, "a", {}, true);
  pass(55s);
  join(2, "b");
  EXPECT_TRUE(started.empty());
  pass(5s);
  EXPECT_TRUE(finished.empty()) << "the minimum is there";
  EXPECT_EQ(group_ranks({1, 2}), (std::vector<int>{0, 1}));
}

TEST_F(Job, ARestartWaitsForNobody) {
  begin(2, 4, 2);
  join(1, "a", {}, true);
  join(2, "b");
  pass(10s);
  const auto fail = [&] {
    ends(1, {failure(0, exited(1))});
    ends(2, {}, 2);
  };
  fail();
  EXPECT_EQ(started.at(1).restart_count, 1) << "at once";
  join(3, "c");
  fail();
  EXPECT_EQ(started.at(1).restart_count, 2) << "with the one that has come";
  EXPECT_EQ(group_ranks({1, 2, 3}), (std::vector<int>{0, 1, 2}));
}

TEST_F(Job, NewcomersAreTakenInTogetherWhenTheLastCallIsOver) {
  begin(1, 4);
  join(1, "a", {}, true);
  pass(10s);
  ASSERT_EQ(started.at(1).group_world_size, 1);
  join(2, "b");
  EXPECT_THAT(said.back(), AllOf(HasSubstr("1 more node has come: b"), HasSubstr("10 s")));
  pass(9s);
  join(3, "c");
  EXPECT_TRUE(stopped.empty()) << "the round goes on meanwhile";
  pass(1s);
  EXPECT_EQ(stopped.at(1).front().why, "2 more nodes have come: b, c");
  EXPECT_EQ(stopped.count(2), 0u);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 2, 3}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(started.at(1).restart_count, 0) << "it costs nothing";
  EXPECT_EQ(started.at(3).why, "2 more nodes have come: b, c");
}

TEST_F(Job, AtTheMaximumNobodyElseIsWaitedForButARoundLastsAsLongAsALastCall) {
  begin(1, 2);
  join(1, "a", {}, true);
  pass(10s);  // the first round begins
  pass(4s);
  join(2, "b");
  EXPECT_THAT(said.back(), HasSubstr("the next round begins in 6 s"));
  pass(5s);
  EXPECT_TRUE(stopped.empty());
  pass(1s);
  ASSERT_EQ(stopped.count(1), 1u);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 2}), (std::vector<int>{0, 1}));
  join(3, "c");
  pass(20s);
  EXPECT_EQ(stopped.at(1).size(), 1u) << "a spare stops nobody";

  begin(1, 2);
  stopped.clear();
  join(1, "a", {}, true);
  pass(10s);
  pass(10s);
  join(2, "b");
  EXPECT_EQ(stopped.count(1), 1u) << "at once";
}

TEST_F(Job, ALastCallEndsWithItsRound) {
  begin(1, 4, 1);
  join(1, "a", {}, true);
  join(2, "b");
  pass(10s);
  join(3, "c");
  ends(2, {failure(2, exited(1))}, 1);
  pass(20s);
  EXPECT_EQ(started.count(3), 0u) << "node a still has processes";
  ends(1, {}, 2);
  EXPECT_EQ(started.at(3).restart_count, 1);

  begin(1, 4, 1);
  started.clear();
  finished.clear();
  join(1, "a", {}, true);
  pass(10s);
  join(2, "b");
  says(1, StopAsked{SIGTERM});
  pass(20s);
  EXPECT_EQ(started.count(2), 0u) << "the job was told to stop";
  ends(1, {}, 2);
  EXPECT_EQ(finished.at(2).exit_code, 143);
}

TEST_F(Job, WhoMissesRanksThatWereStoppedForNewcomersHasNotFailed) {
  begin(2, 3);
  join(1, "a", {}, true);
  join(2, "b");
  pass(10s);
  join(3, "c");
  pass(10s);  // 20 s on the job's clock
  ends(1, {}, 2);
  ends(2, {failure(2, exited(1), 20s), failure(3, exited(1), 20s)}, 0);
  EXPECT_EQ(started.at(3).restart_count, 0);
  EXPECT_EQ(started.at(3).group_world_size, 3);
}

TEST_F(Job, ANewcomerThatCannotStartTheProgramIsLeftOut) {
  begin(1, 2, 3);
  join(1, "a", {}, true);
  pass(10s);
  pass(10s);
  join(2, "b");
  ends(1, {}, 2);
  ASSERT_EQ(started.at(2).round.number, 1u);
  ends(2, {failure(2, {Ending::Kind::not_started, 2, false})});
  EXPECT_THAT(refused.at(2).what, HasSubstr("can't be started on this host"));
  ends(1, {}, 2);
  EXPECT_TRUE(finished.empty());
  EXPECT_EQ(started.at(1).group_world_size, 1);
  EXPECT_THAT(started.at(1).why.value(), HasSubstr("host b can't start the program"));
  EXPECT_EQ(started.at(1).restart_count, 0);
}

TEST_F(Job, ALossLongAfterAFailureDoesNotExcuseIt) {
  begin(1, 2);
  join(1, "a", {}, true);
  join(2, "b");
  says(1, RoundFailed{0, "rank 0 ended with exit code 1"});
  pass(30s);
  leaves(2);
  ends(1, {failure(0, exited(1), 1s)}, 1);
  EXPECT_EQ(finished.at(1).exit_code, 1);
  EXPECT_EQ(finished.at(1).cause->rank, 0);
}

TEST_F(Job, FailureUpTo10sBeforeTheLossIsNoticedCostsNoRestart) {
  const struct {
    std::chrono::milliseconds unnoticed;
    int restart_count;
  } cases[] = {{3s, 0}, {10s, 0}, {10s + 1ms, 1}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.unnoticed.count());
    begin(2, 3, 1);
    for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
    pass(20s);
    says(1, RoundFailed{0, "rank 0 ended with exit code 1"});  // it met the dead rank first
    ends(1, {failure(0, exited(1), 20s)}, 1);
    pass(c.unnoticed);
    leaves(3);
    ends(2, {}, 2);
    EXPECT_EQ(started.at(1).round.number, 1u);
    EXPECT_EQ(started.at(1).restart_count, c.restart_count);
  }
}

TEST_F(Job, WorkThatIsDoneIsNotDoneAgainForANodeThatLeaves) {
  begin(1, 2);
  join(1, "a", {}, true);
  join(2, "b");
  ends(2);
  leaves(2);
  join(3, "c");
  pass(20s);
  EXPECT_TRUE(stopped.empty());
  ends(1);
  EXPECT_EQ(finished.at(1).exit_code, 0);

  begin(1, 2);
  finished.clear();
  join(1, "a", {}, true);
  join(2, "b");
  ends(1);
  leaves(2);
  EXPECT_EQ(finished.at(1).exit_code, 77) << "what the lost one did is not known";
}

TEST_F(Job, ANewcomerThatLeavesAgainChangesNothing) {
  begin(1, 3);
  join(1, "a", {}, true);
  pass(10s);
  join(2, "b");
  leaves(2);
  pass(20s);
  EXPECT_TRUE(stopped.empty());
}

TEST_F(Job, WhoComesWhileTheStoreIsOpenedIsCalledAfterwards) {
  begin(1, 3);
  stores_open = false;
  join(1, "a", {}, true);
  pass(10s);
  join(2, "b");
  says(1, StoreOpened{0, 4000});
  ASSERT_EQ(started.count(1), 1u);
  pass(10s);
  EXPECT_EQ(stopped.count(1), 1u);
}

TEST_F(Job, NobodyIsTakenInWhenTheWorkIsDone) {
  begin(2, 4);
  join(1, "a", {}, true);
  join(2, "b");
  pass(10s);
  ends(1);
  join(3, "c");
  pass(10s);
  EXPECT_TRUE(stopped.empty()) << "the others are about to end too";
  ends(2);
  EXPECT_EQ(finished.at(3).exit_code, 0);

  begin(1, 3);  // all end while they are about to be stopped
  finished.clear();
  join(1, "a", {}, true);
  pass(10s);
  join(2, "b");
  pass(10s);
  ASSERT_EQ(stopped.count(1), 1u);
  ends(1, {}, 0);
  EXPECT_EQ(finished.at(1).exit_code, 0);
}

TEST_F(Job, AFailureWhileNewcomersAreTakenInCostsARestart) {
  begin(1, 2, 1);
  join(1, "a", {}, true);
  pass(10s);
  join(2, "b");
  ends(1, {failure(0, exited(1))}, 1);
  EXPECT_EQ(started.at(2).restart_count, 1);
  EXPECT_THAT(started.at(2).why.value(), HasSubstr("rank 0"));
}

TEST_F(Job, ALossCostsNothingWhereEnoughAreLeft) {
  begin(1, 3);
  join(1, "a", {}, true);
  join(2, "b");
  join(3, "c");
  says(3, RoundFailed{0, "rank 4 ended with exit code 1 on host c"});  // it met the dead rank first
  leaves(2);
  ends(3, {failure(4, exited(1))}, 1);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 3}), (std::vector<int>{0, 1})) << "at once";
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(started.at(1).restart_count, 0);
  EXPECT_THAT(started.at(1).why.value(), HasSubstr("host b"));
  leaves(3);
  ends(1, {}, 2);
  EXPECT_EQ(started.at(1).group_world_size, 1);
  EXPECT_TRUE(finished.empty());
}

TEST_F(Job, ASpareTakesThePlaceOfALostNodeAtOnce) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  join(3, "c");
  leaves(2);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 3}), (std::vector<int>{0, 1}));
  EXPECT_EQ(started.at(3).restart_count, 0);
}

TEST_F(Job, ANodeThatLeavesBeforeTheRoundIsWaitedForAgain) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b", 1);
  started.clear();
  begin(3, 3);
  join(1, "a", {}, true);
  join(2, "b", 1);
  leaves(2);
  join(3, "c", 1);
  EXPECT_TRUE(refused.empty()) << "its node rank is free again";
  join(4, "d");
  EXPECT_EQ(group_ranks({1, 3, 4}), (std::vector<int>{0, 1, 2}));
}

TEST_F(Job, ALostNodeStopsTheOthersAndEndsAJobWithoutRestarts) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  leaves(2);
  EXPECT_THAT(stopped.at(1).front().why.value(), AllOf(HasSubstr("node 1"), HasSubstr("host b"), HasSubstr("gone")));
  ends(1, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, 77);
  EXPECT_THAT(finished.at(1).what.value(), HasSubstr("host b"));
}

TEST_F(Job, ALostNodeIsReplacedWhileTheBudgetLastsAndItsRankIsTakenOver) {
  begin(2, 2, 1);
  join(1, "a", {}, true);
  join(2, "b");
  leaves(2);
  ends(1, {}, 2);
  EXPECT_TRUE(finished.empty());
  started.clear();
  pass(30s);
  join(3, "c");
  EXPECT_EQ(group_ranks({1, 3}), (std::vector<int>{0, 1}));
  EXPECT_EQ(started.at(3).restart_count, 1);
  EXPECT_THAT(started.at(1).why.value(), HasSubstr("host b"));
}

TEST_F(Job, AReplacementMayComeBeforeTheLossIsKnown) {
  begin(2, 2, 1);
  join(1, "a", 0, true);
  join(2, "b", 1);
  join(3, "b", 1);
  EXPECT_TRUE(refused.empty());
  leaves(2);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 3}), (std::vector<int>{0, 1}));
}

TEST_F(Job, WhoWaitsInVainForAReplacementSaysWhatWasLost) {
  begin(2, 2, 1);
  join(1, "a", {}, true);
  join(2, "b");
  leaves(2);
  ends(1, {}, 2);
  pass(60s);
  EXPECT_EQ(finished.at(1).exit_code, 77);
  EXPECT_THAT(finished.at(1).what.value(), AllOf(HasSubstr("host b"), HasSubstr("only 1 of 2 nodes")));
}

TEST_F(Job, ANodeThatLeavesAfterItsGoodEndIsNotMissed) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  ends(2);
  leaves(2);
  EXPECT_TRUE(stopped.empty());
  ends(1);
  EXPECT_EQ(finished.at(1).exit_code, 0);
}

TEST_F(Job, IsFullWhileARoundOfAsManyNodesAsItTakesRuns) {
  begin(1, 2);
  join(1, "a");
  EXPECT_FALSE(membership->is_full());
  join(2, "b");
  EXPECT_TRUE(membership->is_full());
  disconnects(2);
  EXPECT_FALSE(membership->is_full()) << "who comes now may be needed at once";
}

TEST_F(Job, NodesBeyondTheMaximumWaitAsSparesAndEndWithTheJob) {
  begin(1, 1, 1);
  join(1, "a", {}, true);
  join(2, "b");
  EXPECT_EQ(started.count(2), 0u);
  ends(1);
  EXPECT_EQ(finished.at(2).exit_code, 0);
}

TEST_F(Job, NodeThatSaysWhyItLeavesIsLostAtOnceForThatReason) {
  begin(2, 2, 1);
  join(1, "a", {}, true);
  join(2, "b");
  says(2, Leaving{"its guardian process was killed by SIGKILL"});
  EXPECT_EQ(stopped.at(1).back().why, "node 1 (host b) was lost: its guardian process was killed by SIGKILL");
  disconnects(2);
  ends(1, {}, 2);
  join(3, "c");
  EXPECT_EQ(group_ranks({1, 3}), (std::vector<int>{0, 1})) << "its end is proven";
}

TEST_F(Job, JobThatEndsForALostNodeEndsWithTheCodeThatTheNodeSaidItEndsWith) {
  const struct {
    std::optional<int> said;
    int want;
  } cases[] = {{137, 137}, {{}, kRendezvousFailed}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.want);
    begin(2, 2);
    join(1, "a", {}, true);
    join(2, "b");
    says(2, Leaving{"its guardian process was killed by SIGKILL", c.said});
    ends(1, {}, 2);
    EXPECT_EQ(finished.at(1).exit_code, c.want);
    EXPECT_THAT(finished.at(1).what.value(), HasSubstr("its guardian process was killed by SIGKILL"));
    finished.clear();
  }
}

TEST_F(Job, JobThatEndsForAKilledDdprunEndsWithTheCodeOfThatSignal) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  hear(membership->step(NodeEnded{"key-2", SIGKILL}, now));
  ends(1, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, 137);
  EXPECT_THAT(finished.at(1).what.value(), HasSubstr(" was lost: its ddprun was killed by SIGKILL"));
}

TEST_F(Job, JobThatEndsForAnotherNodeLostLaterEndsWithThatNodesCode) {
  begin(3, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  says(2, Leaving{"its guardian process was killed by SIGKILL", 137});
  says(3, Leaving{"another reason"});
  ends(1, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, kRendezvousFailed);
  EXPECT_THAT(finished.at(1).what.value(), HasSubstr("another reason"));
}

}  // namespace
}  // namespace ddp::rendezvous
