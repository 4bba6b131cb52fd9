// Rounds begin with their ranks, stop and end.
#include "membership_job.hpp"

namespace ddp::rendezvous {
namespace {

TEST_F(Job, BeginsWhenTheLastNodeHasComeAndGivesEachItsRanks) {
  begin(2, 2);
  join(1, "b");
  EXPECT_TRUE(started.empty());
  hello.workers = 3;
  join(2, "a", {}, true);
  ASSERT_EQ(started.size(), 2u);
  const auto& host = started.at(2);
  EXPECT_EQ(host.group_rank, 0) << "the endpoint's host comes first";
  EXPECT_EQ(host.group_world_size, 2);
  EXPECT_EQ(host.rank_first, 0);
  EXPECT_EQ(host.world_size, 5);
  EXPECT_EQ(host.round.number, 0u);
  EXPECT_EQ(host.round.term, 1700000000u);
  EXPECT_EQ(host.master_port, 4000);
  EXPECT_EQ(started.at(1).rank_first, 3);
  EXPECT_EQ(started.at(1).master_address, "") << "each reaches the endpoint as it did before";
}

TEST_F(Job, TheStoreIsOpenedByGroupRankZeroForTheOthersAddresses) {
  begin(2, 2);
  stores_open = false;
  hello.addresses = {"192.168.0.7", "127.0.0.1"};
  join(1, "a", 0);
  join(2, "b", 1, true);
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_EQ(opened[0].first, 1u);
  EXPECT_THAT(opened[0].second.allow, ElementsAre("192.168.0.7", "127.0.0.1", "10.0.0.2"));
  EXPECT_TRUE(started.empty());
  says(1, StoreOpened{9, 4000});
  EXPECT_TRUE(started.empty()) << "of another round";
  says(1, StoreOpened{0, 4000});
  EXPECT_EQ(started.at(2).master_address, "10.0.0.1") << "as it is seen, because it does not host the endpoint";
}

TEST_F(Job, ALocalAddressGoesBeforeAnyOther) {
  begin(1, 1);
  hello.local_address = "ib0.gpu1";
  join(1, "gpu1", {}, true);
  EXPECT_EQ(started.at(1).master_address, "ib0.gpu1");
}

TEST_F(Job, TheAddressesOfARoundAreBoundedAndLeaveNoNodeOut) {
  constexpr int kNodes = 2'000;
  begin(kNodes, kNodes);
  hello.addresses.assign(kAddressesMax, "192.0.2.1");
  for (int i = 1; i <= kNodes; ++i) join(static_cast<std::uint64_t>(i), "a", i - 1, i == 1);
  std::size_t count = 0;
  std::set<std::string> seen;
  for (const auto& [id, open] : opened) {
    count += open.allow.size();
    seen.insert(open.allow.begin(), open.allow.end());
  }
  EXPECT_LE(count, kRoundAddressesMax);
  EXPECT_GE(count, kRoundAddressesMax * 9 / 10);
  EXPECT_EQ(seen.size(), 1u + kNodes - 1) << "each is seen at one";
}

TEST_F(Job, TheAddressesOfManyNodesComeInBoundedMessages) {
  begin(300, 300);
  stores_open = false;
  hello.addresses = {"10.1.0.1"};
  for (std::uint64_t id = 1; id <= 300; ++id) join(id, "n" + std::to_string(id), static_cast<int>(id - 1));
  ASSERT_EQ(opened.size(), 3u);
  std::size_t count = 0;
  for (const auto& [id, open] : opened) {
    EXPECT_LE(open.allow.size(), 256u);
    EXPECT_EQ(open.is_last, &open == &opened.back().second);
    count += open.allow.size();
  }
  EXPECT_EQ(count, 2u * 299);
}

TEST_F(Job, WishedNodeRanksAreGivenAndTheRestFollowsByName) {
  begin(4, 4);
  join(1, "node10");
  join(2, "node2");
  join(3, "node1", 2);
  join(4, "zulu", {}, true);
  EXPECT_EQ(group_ranks({4, 2, 3, 1}), (std::vector<int>{0, 1, 2, 3}));
}

TEST_F(Job, RolesCountTheirOwnRanks) {
  begin(3, 3);
  hello.role = "trainer";
  join(1, "a", 0);
  hello.role = "reader";
  join(2, "b", 1);
  hello.role = "trainer";
  join(3, "c", 2);
  EXPECT_EQ(started.at(3).rank_first, 4);
  EXPECT_EQ(started.at(3).role_rank_first, 2);
  EXPECT_EQ(started.at(3).role_world_size, 4);
  EXPECT_EQ(started.at(2).role_rank_first, 0);
  EXPECT_EQ(started.at(2).role_world_size, 2);
}

TEST_F(Job, AStopOfASpareWhileTheStoreIsOpenedIsItsOwn) {
  begin(1, 1);
  stores_open = false;
  join(1, "a", {}, true);
  join(2, "b");
  says(2, StopAsked{SIGINT});
  EXPECT_EQ(finished.count(1), 0u);
  says(1, StoreOpened{0, 4000});
  EXPECT_EQ(started.count(1), 1u);
}

TEST_F(Job, WhereProcessesCannotBeKilledNoOtherRoundBegins) {
  begin(1, 2);
  join(1, "a", {}, true);
  pass(10s);
  pass(10s);
  join(2, "b");
  says(1, RoundEnded{0, {}, 2, true});
  EXPECT_EQ(finished.at(2).exit_code, 1);
  EXPECT_THAT(finished.at(2).what.value(), HasSubstr("could not be killed"));
}

TEST_F(Job, AStoreOnTheEndpointsHostIsReachedAsTheEndpointIs) {
  begin(2, 2);
  auto its = hello;
  its.host_name = "a";
  hear(membership->step(Joined{node(1), its, "127.0.0.1", false}, now));
  join(2, "b");
  EXPECT_EQ(started.at(2).master_address, "");
}

TEST_F(Job, AllNodesEndWell) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  ends(1);
  EXPECT_TRUE(finished.empty()) << "the store stays while others work";
  ends(2);
  EXPECT_EQ(finished.at(1).exit_code, 0);
  EXPECT_EQ(finished.at(2).exit_code, 0);
  EXPECT_FALSE(finished.at(1).cause);
}

TEST_F(Job, FailureThatIsNotDescribedStopsEveryNodeWithoutAReason) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  says(2, RoundFailed{0});
  EXPECT_EQ(stopped.at(1).front().why, std::nullopt);
}

TEST_F(Job, OneFailureStopsEveryNodeAndIsToldToAll) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  says(2, RoundFailed{0, "rank 3 was killed by SIGKILL on host b"});
  EXPECT_EQ(stopped.at(1).front().why, "rank 3 was killed by SIGKILL on host b");
  EXPECT_EQ(stopped.at(2).front().why, std::nullopt) << "it knows";
  ends(2, {failure(3, kKilled)}, 1);
  EXPECT_TRUE(finished.empty());
  ends(1, {}, 2);
  for (const std::uint64_t id : {1u, 2u}) {
    EXPECT_EQ(finished.at(id).exit_code, 137);
    EXPECT_EQ(finished.at(id).cause->rank, 3);
    EXPECT_EQ(finished.at(id).stopped, 3);
    EXPECT_EQ(finished.at(id).world_size, 4);
  }
}

TEST_F(Job, StartsAgainWhileTheOneBudgetLastsWithNewRoundsAndOldRanks) {
  begin(2, 2, 2);
  join(2, "b");
  join(1, "a", {}, true);
  ends(2, {failure(2, exited(1))}, 1);
  EXPECT_EQ(stopped.at(1).size(), 1u);
  ends(1, {}, 2);
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(started.at(1).restart_count, 1);
  EXPECT_THAT(started.at(2).why.value(), HasSubstr("rank 2 ended with exit code 1"));
  EXPECT_EQ(group_ranks({1, 2}), (std::vector<int>{0, 1}));
  ends(1, {failure(0, exited(1))}, 1);  // another node's failure costs the same budget
  ends(2, {}, 2);
  EXPECT_EQ(started.at(1).restart_count, 2);
  ends(1, {failure(0, exited(4))}, 1);
  ends(2, {}, 2);
  EXPECT_EQ(finished.at(2).exit_code, 4);
}

TEST_F(Job, OnlyRestartsWithinTheWindowCount) {
  restart_window = 60s;
  begin(1, 1, 2);
  join(1, "a", {}, true);
  for (int restart = 1; restart <= 5; ++restart) {
    ends(1, {failure(0, exited(1))});
    ASSERT_EQ(started.at(1).restart_count, restart);
    pass(30s);  // so two are within a minute, never three
  }
  ends(1, {failure(0, exited(1))});
  EXPECT_TRUE(finished.empty());
  pass(29s);
  ends(1, {failure(0, exited(1))});
  EXPECT_EQ(finished.at(1).exit_code, 1) << "the third in 59 s";
}

TEST_F(Job, WordsOfAnotherRoundMeanNothing) {
  begin(1, 1, 1);
  join(1, "a", {}, true);
  says(1, RoundEnded{7, {failure(0, exited(1))}, 0, false});
  says(1, RoundFailed{7, "x"});
  EXPECT_TRUE(stopped.empty());
  EXPECT_TRUE(finished.empty());
  ends(1);
  ends(1);
  EXPECT_EQ(finished.at(1).exit_code, 0);
}

TEST_F(Job, RoundsGoOnAboveThoseThatHaveLogs) {
  begin(2, 2);
  hello.highest_round = 4;
  join(1, "a", {}, true);
  hello.highest_round = 6;
  join(2, "b");
  EXPECT_EQ(started.at(1).round.number, 7u);
}

TEST_F(Job, AllNodesAreToldInAllRoundsWhenTheFirstNodeBegan) {
  begin(2, 2, 1);
  hello.started = 1007;
  join(1, "a", 1);
  hello.started = 1000;
  join(2, "b", 0, true);
  for (const std::uint32_t round : {0u, 1u}) {
    for (const std::uint64_t node : {1, 2}) {
      EXPECT_EQ(started.at(node).round.number, round);
      EXPECT_EQ(started.at(node).job_started, 1000u);
    }
    ends(1, {failure(2, kKilled)});
    ends(2, {}, 2);
  }
}

TEST_F(Job, AMembershipThatTakesOverTellsTheSameStartOfTheJob) {
  begin(2, 2, 1);
  hello.started = 1000;
  hello.held = Held{{1600000000, 1, 4}, 0, 2, 0, true, false, {"nonce"}, {}, {}, {}, {}, 900};
  join(1, "a");
  hello.held->group_rank = 1;
  join(2, "b");
  says(1, RoundEnded{4, {failure(0, kKilled)}, 0, false});
  says(2, RoundEnded{4, {}, 2, false});
  EXPECT_EQ(started.at(1).round.number, 5u);
  EXPECT_EQ(started.at(1).job_started, 900u);
}

TEST_F(Job, LogsOfASpareDoNotChangeTheRoundThatRuns) {
  begin(1, 1, 1);
  join(1, "a", {}, true);
  hello.highest_round = 6;
  join(2, "b");
  ends(1, {failure(0, exited(1))});
  EXPECT_EQ(started.at(1).round.number, 7u);
}

TEST_F(Job, AProgramThatCannotStartIsNotTriedAgain) {
  begin(1, 1, 5);
  join(1, "a", {}, true);
  ends(1, {failure(0, {Ending::Kind::not_started, ENOENT, false})});
  EXPECT_EQ(finished.at(1).exit_code, 127);
}

TEST_F(Job, ANodeThatHasStoppedItsWorkersOutOfTouchStopsTheRoundAtNoCost) {
  begin(2, 2, 0);
  join(1, "a", {}, true);
  join(2, "b");
  RoundEnded ended{0, {}, 2, false};
  ended.why_stopped = "nobody answers at host a";
  says(2, ended);
  ASSERT_EQ(stopped.count(1), 1u) << "the others would wait for its part";
  ends(1, {}, 2);
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(started.at(1).restart_count, 0);
  EXPECT_THAT(started.at(1).why.value(), HasSubstr("host b has stopped its workers: nobody answers at host a"));
}

TEST_F(Job, ASpareThatIsToldToStopHasAVerdictOfItsOwn) {
  begin(1, 1);
  join(1, "a", {}, true);
  join(2, "b");
  says(2, StopAsked{SIGTERM});
  ASSERT_EQ(finished.count(2), 1u);
  EXPECT_EQ(finished.at(2).exit_code, 143);
  EXPECT_EQ(finished.count(1) + stopped.count(1), 0u);
}

TEST_F(Job, AStopThatIsSaidAgainOnAnotherConnectionIsNoSecondOne) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  says(2, StopAsked{SIGINT});
  disconnects(2);
  comes_again(2, 12, held_by(2));
  now += 1s;
  says(12, StopAsked{SIGINT});
  EXPECT_FALSE(stopped.at(1).back().kill);
  now += 1s;
  says(12, StopAsked{SIGINT});
  EXPECT_TRUE(stopped.at(1).back().kill);
}

TEST_F(Job, AStopSignalAnywhereStopsAllAndIsEveryonesExitCode) {
  begin(2, 2, 3);
  join(1, "a", {}, true);
  join(2, "b");
  says(2, StopAsked{SIGINT});
  EXPECT_EQ(stopped.at(1).front().signal_number, SIGINT);
  EXPECT_THAT(stopped.at(1).front().why.value(), AllOf(HasSubstr("SIGINT"), HasSubstr("host b")));
  says(2, StopAsked{SIGINT});
  EXPECT_EQ(stopped.at(1).size(), 1u) << "an echo";
  now += 1s;
  says(2, StopAsked{SIGINT});
  EXPECT_TRUE(stopped.at(1).back().kill);
  ends(1, {}, 2);
  ends(2, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, 130);
  EXPECT_EQ(finished.at(2).exit_code, 130);
}

TEST_F(Job, OneSignalToEachNodeIsNoSecondSignal) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  says(2, StopAsked{SIGTERM});
  now += 1s;  // a scheduler's signal reaches one node later than the other
  says(1, StopAsked{SIGTERM});
  EXPECT_FALSE(stopped.at(2).back().kill) << "workers may be saving their state";
  now += 1s;
  says(1, StopAsked{SIGTERM});
  EXPECT_TRUE(stopped.at(2).back().kill);
}

TEST_F(Job, AStopOfASpareIsItsOwn) {
  begin(1, 1, 1);
  join(1, "a", {}, true);
  join(2, "b");
  says(2, StopAsked{SIGTERM});
  EXPECT_TRUE(stopped.empty());
  leaves(2);
  ends(1);
  EXPECT_EQ(finished.at(1).exit_code, 0);
}

TEST_F(Job, AWorkerThatDiesOfTheSignalThatStopsDdprunIsNoFailure) {
  begin(1, 1, 3);
  join(1, "a", {}, true);
  says(1, RoundFailed{0, "x"});  // a scheduler signals every process; the worker's death is seen first
  says(1, StopAsked{SIGTERM});
  ends(1, {failure(0, {Ending::Kind::killed, SIGTERM, false})}, 1);
  EXPECT_EQ(finished.at(1).exit_code, 143);
  EXPECT_FALSE(finished.at(1).cause);
}

TEST_F(Job, WhatIsKilledAfterASignalToAnotherNodeIsNoFailureButWhatWasKilledBeforeIs) {
  for (const bool is_before : {false, true}) {
    SCOPED_TRACE(is_before);
    begin(2, 2);
    join(1, "a", {}, true);
    join(2, "b");
    now += 5s;
    says(2, StopAsked{SIGTERM});
    ends(1, {failure(0, {Ending::Kind::killed, SIGKILL, false}, is_before ? 4s : 6s)}, 1);
    ends(2, {}, 2);
    EXPECT_EQ(finished.at(1).exit_code, is_before ? 128 + SIGKILL : 128 + SIGTERM);
  }
}

TEST_F(Job, AStopSignalEndsARestartButNotTheBlame) {
  for (const int restarts : {1, 0}) {
    begin(1, 1, restarts);
    join(1, "a", {}, true);
    says(1, RoundFailed{0, "x"});
    says(1, StopAsked{SIGINT});
    ends(1, {failure(0, exited(7))}, 0);
    EXPECT_EQ(finished.at(1).exit_code, restarts == 1 ? 130 : 7);
  }
}

TEST_F(Job, AStopBeforeTheFirstRoundEndsTheWait) {
  begin(2, 2);
  join(1, "a", {}, true);
  says(1, StopAsked{SIGTERM});
  EXPECT_EQ(finished.at(1).exit_code, 143);
}

TEST_F(Job, TheStoresNodeMayDieWhileItOpensIt) {
  begin(2, 2, 1);
  stores_open = false;
  join(1, "a", 1, true);
  join(2, "b", 0);
  leaves(2);
  stores_open = true;
  join(3, "c", 0);
  EXPECT_EQ(group_ranks({3, 1}), (std::vector<int>{0, 1}));
}

TEST_F(Job, ANodeThatNeverOpensTheStoreIsLetGo) {
  begin(2, 2, 1);
  stores_open = false;
  join(1, "a", 1, true);
  join(2, "b", 0);
  pass(29s);
  EXPECT_TRUE(refused.empty());
  pass(1s);
  EXPECT_THAT(refused.at(2).what, HasSubstr("did not open the store"));
  stores_open = true;
  join(3, "c", 0);
  EXPECT_EQ(group_ranks({3, 1}), (std::vector<int>{0, 1}));
  EXPECT_THAT(started.at(1).why.value(), AllOf(HasSubstr("host b"), HasSubstr("store")));
}

// A failure of each rank, in their order.
std::vector<FailureReport> of_ranks(std::vector<FailureReport> failures) {
  for (std::size_t i = 0; i < failures.size(); ++i) failures[i].rank = static_cast<int>(i);
  return failures;
}

FailureReport failure_at(std::chrono::milliseconds time, Ending ending, std::vector<int> accused = {}) {
  FailureReport report;
  report.job_time = time;
  report.ending = ending;
  report.accused = std::move(accused);
  return report;
}

std::size_t first_of(const std::vector<FailureReport>& failures) { return first_cause(of_ranks(failures)); }

const Ending kLeft{Ending::Kind::left, 0, false}, kFault{Ending::Kind::killed, SIGSEGV, false},
    kAborted{Ending::Kind::killed, SIGABRT, false};

TEST(FirstCause, IsTheEarliestOfEqualFailures) {
  EXPECT_EQ(first_of({failure_at(20ms, exited(1)), failure_at(10ms, exited(1))}), 1u);
  EXPECT_EQ(first_of({failure_at(10ms, kKilled), failure_at(5ms, kKilled)}), 1u);
  EXPECT_EQ(first_of({failure_at(10ms, kLeft), failure_at(5ms, kLeft)}), 1u);
  EXPECT_EQ(first_of({failure_at(10ms, kLeft), failure_at(900ms, exited(1))}), 1u) << "it missed the other";
}

TEST(FirstCause, FaultGoesBeforeAnExitAtTheSameMoment) {
  EXPECT_EQ(first_of({failure_at(10ms, exited(1)), failure_at(240ms, kFault)}), 1u);
  EXPECT_EQ(first_of({failure_at(10ms, exited(1)), failure_at(400ms, kFault)}), 0u);
  EXPECT_EQ(first_of({failure_at(10ms, exited(1)), failure_at(40ms, kAborted)}), 0u)
      << "a library aborts when its peer has failed";
}

TEST(FirstCause, SigkillInTheGraceIsNotWhatTheOthersFailedFor) {
  EXPECT_EQ(first_of({failure_at(10ms, exited(1)), failure_at(240ms, kKilled)}), 1u);
  EXPECT_EQ(first_of({failure_at(10ms, exited(1)), failure_at(400ms, kKilled)}), 0u);
  EXPECT_EQ(first_of({failure_at(10ms, kFault), failure_at(20ms, kKilled)}), 0u);
  auto by_ddprun = failure_at(20ms, kKilled);
  by_ddprun.killed_for = "it did not come to a collective";
  EXPECT_EQ(first_of({failure_at(10ms, exited(1)), by_ddprun}), 0u);
}

TEST(FirstCause, DeathThatHadBegunAtTheFirstFailureGoesBeforeIt) {
  auto late = failure_at(1h, kKilled);
  late.was_ending = true;
  EXPECT_EQ(first_of({failure_at(10ms, exited(1)), late}), 1u);
  EXPECT_EQ(first_of({failure_at(10ms, kKilled), late}), 1u) << "that one was killed in the grace";
  late.ending = kFault;
  EXPECT_EQ(first_of({failure_at(10ms, exited(1)), late}), 1u);
  late.ending = kAborted;
  EXPECT_EQ(first_of({failure_at(10ms, exited(1)), late}), 0u) << "a library aborts when its peer has failed";
  late.ending = exited(3);
  EXPECT_EQ(first_of({failure_at(10ms, exited(1)), late}), 0u) << "an exit code is no more than a candidate";
}

// Seen first at 1 s is rank 0; the other one was ending then, and is reaped 2 s later.
TEST(FirstCause, SlowEndThatHadBegunAtTheFirstFailureIsNotLaterThanThat) {
  for (const auto& ending : {exited(3), kAborted}) {
    auto first = failure_at(1s, exited(1)), late = failure_at(3s, ending);
    first.was_ending = late.was_ending = true;
    late.was_ending_for = 2s;
    const auto failures = of_ranks({first, late});
    EXPECT_EQ(first_cause(failures), 1u);
    EXPECT_FALSE(is_certain(failures, 1)) << "the order of two exits is not known";
    EXPECT_EQ(seen_before(failures, 1), 0u);
    late.was_ending_for = 1999ms;
    EXPECT_EQ(first_of({first, late}), 0u) << "it began to end later";
    late.job_time = 1049ms;
    late.was_ending_for = 49ms;
    EXPECT_EQ(first_of({first, late}), 0u) << "what ends as quickly may have begun to end because of the other";
    late.job_time = 3s;
    late.was_ending_for = 2s;
    first.ending = kKilled;
    EXPECT_EQ(first_of({first, late}), 0u) << "a kill is a failure of its own";
  }
}

TEST(FirstCause, RankThatLeftForAnotherIsAConsequence) {
  EXPECT_EQ(first_of({failure_at(10ms, exited(1), {1}), failure_at(1h, exited(3))}), 1u);
  EXPECT_EQ(first_of({failure_at(10ms, kAborted, {2}), failure_at(20ms, exited(1), {2}), failure_at(1h, kAborted)}),
            2u);
  EXPECT_EQ(first_of({failure_at(10ms, exited(1), {1}), failure_at(20ms, exited(1), {2}), failure_at(1h, exited(3))}),
            2u)
      << "one may have missed a consequence";
  EXPECT_EQ(first_of({failure_at(10ms, kKilled, {1}), failure_at(1h, exited(3))}), 1u)
      << "it was killed while it ended for another";
}

TEST(FirstCause, RankThatLeftForAHealthyOneIsACandidate) {
  EXPECT_EQ(first_of({failure_at(10ms, exited(1), {7}), failure_at(20ms, exited(3))}), 0u);
  EXPECT_EQ(first_of({failure_at(20ms, exited(1), {1}), failure_at(10ms, exited(1), {0})}), 1u)
      << "each accuses the other";
  EXPECT_EQ(
      first_of({failure_at(20ms, exited(1), {1}), failure_at(30ms, exited(1), {0}), failure_at(1ms, exited(1), {0})}),
      0u)
      << "nobody accuses the earliest";
}

FailureReport failure_of(const char* host, std::chrono::milliseconds time, std::chrono::milliseconds error,
                         Ending ending, std::vector<int> accused = {}) {
  auto out = failure_at(time, ending, std::move(accused));
  out.host = host;
  out.job_time_error = error;
  return out;
}

TEST(FirstCause, TimesOfTwoNodesAreNoMoreExactThanTheirClocks) {
  // Both may have been the first. Rank 2 accuses rank 1, and a healthy one.
  const auto accuser = failure_of("c", 900ms, 0ms, exited(1), {1, 9});
  EXPECT_EQ(first_of({failure_of("a", 10ms, 20ms, exited(1)), failure_of("b", 50ms, 20ms, exited(3)), accuser}), 1u);
  EXPECT_EQ(first_of({failure_of("a", 10ms, 19ms, exited(1)), failure_of("b", 50ms, 20ms, exited(3)), accuser}), 0u)
      << "the clocks tell";
  EXPECT_EQ(first_of({failure_of("a", 10ms, 20ms, exited(1)), failure_of("a", 50ms, 20ms, exited(3)), accuser}), 0u)
      << "one clock tells both";
  EXPECT_EQ(first_of({failure_of("a", 10ms, 20ms, exited(1)), failure_of("b", 50ms, 20ms, exited(3))}), 0u)
      << "nothing but the times tells";
}

TEST(FirstCause, FaultGoesBeforeAnExitThatTheClocksDoNotTellFromALaterOne) {
  EXPECT_EQ(first_of({failure_of("a", 10ms, 200ms, exited(1)), failure_of("b", 600ms, 150ms, kFault)}), 1u);
  EXPECT_EQ(first_of({failure_of("a", 10ms, 200ms, exited(1)), failure_of("b", 611ms, 150ms, kFault)}), 0u);
}

TEST(FirstCause, SlowEndGoesFirstWhereTheClocksOfTwoNodesDoNotTell) {
  auto late = failure_of("b", 3s, 20ms, exited(3));
  late.was_ending = true;
  late.was_ending_for = 1960ms;
  EXPECT_EQ(first_of({failure_of("a", 1s, 20ms, exited(1)), late}), 1u);
  EXPECT_EQ(first_of({failure_of("a", 1s, 19ms, exited(1)), late}), 0u) << "the clocks tell";
}

std::optional<std::size_t> seen_before_cause(const std::vector<FailureReport>& failures) {
  const auto those = of_ranks(failures);
  return seen_before(those, first_cause(those));
}

TEST(SeenFirst, IsTheEarliestFailureBeforeTheCause) {
  EXPECT_EQ(seen_before_cause(
                {failure_at(20ms, exited(1), {2}), failure_at(10ms, exited(1), {2}), failure_at(1s, exited(3))}),
            1u);
  EXPECT_EQ(seen_before_cause({failure_at(10ms, exited(3)), failure_at(20ms, exited(1), {0})}), std::nullopt)
      << "the cause was seen first";
  EXPECT_EQ(seen_before_cause({failure_at(10ms, exited(3))}), std::nullopt);
}

TEST(SeenFirst, IsNotToldIfTheClocksDoNotTell) {
  EXPECT_EQ(seen_before_cause({failure_of("a", 10ms, 20ms, exited(1), {1}), failure_of("b", 50ms, 20ms, exited(3))}),
            std::nullopt);
  EXPECT_EQ(seen_before_cause({failure_of("a", 10ms, 20ms, exited(1), {1}), failure_of("b", 51ms, 20ms, exited(3))}),
            0u);
}

TEST(FirstCause, RankThatMissedAnUnnamedPeerIsAConsequenceOfAnyOther) {
  auto missed = failure_at(10ms, exited(1));
  missed.missed_a_peer = true;
  EXPECT_EQ(first_of({missed, failure_at(1h, exited(3)), missed}), 1u);
  EXPECT_EQ(first_of({missed, missed}), 0u) << "nobody explains them";
  EXPECT_EQ(first_of({missed, failure_at(20ms, exited(1), {0})}), 0u) << "the other accuses it";
  EXPECT_EQ(first_of({missed, failure_at(20ms, exited(1), {7})}), 0u) << "the other missed a healthy one";
}

bool is_certain_of(const std::vector<FailureReport>& failures) {
  const auto those = of_ranks(failures);
  return is_certain(those, first_cause(those));
}

TEST(FirstCause, IsNotCertainAmongWorkersThatEndTogetherAndSayNothing) {
  EXPECT_FALSE(is_certain_of({failure_at(10ms, exited(1)), failure_at(260ms, exited(3))}));
  EXPECT_FALSE(is_certain_of({failure_at(10ms, exited(1)), failure_at(20ms, kAborted)}));
  EXPECT_FALSE(is_certain_of({failure_of("a", 10ms, 20ms, exited(1)), failure_of("b", 290ms, 20ms, exited(3))}))
      << "the errors of both clocks count";
  EXPECT_TRUE(is_certain_of({failure_at(10ms, exited(1)), failure_at(261ms, exited(3))}));
  EXPECT_TRUE(is_certain_of({failure_of("a", 10ms, 20ms, exited(1)), failure_of("b", 301ms, 20ms, exited(3))}));
}

TEST(FirstCause, IsNotCertainWhereAnotherWasEndingAlreadyThoughItIsReportedMuchLater) {
  for (const auto& ending : {exited(3), kAborted}) {
    auto late = failure_at(1s, ending);
    EXPECT_TRUE(is_certain_of({failure_at(10ms, exited(1)), late}));
    late.was_ending = true;
    EXPECT_FALSE(is_certain_of({failure_at(10ms, exited(1)), late}));
  }
}

TEST(FirstCause, IsNotCertainWhereAWorkerFailedForAnotherThatDidNotFail) {
  EXPECT_FALSE(is_certain_of({failure_at(10ms, exited(1), {7})})) << "the one that it accuses has not failed";
  EXPECT_FALSE(is_certain_of({failure_at(20ms, exited(1), {1}), failure_at(10ms, exited(1), {0})})) << "a circle";
  EXPECT_TRUE(is_certain_of({failure_at(10ms, kKilled, {7})})) << "the kernel shows a failure of its own";
}

TEST(FirstCause, AFaultOfMemoryInTheGraceIsNotCertainlyTheCause) {
  EXPECT_FALSE(is_certain_of({failure_at(10ms, exited(1)), failure_at(200ms, kFault)}));
  EXPECT_TRUE(is_certain_of({failure_at(10ms, exited(1), {1}), failure_at(200ms, kFault)})) << "it is accused";
  auto fault = failure_at(200ms, kFault);
  fault.was_ending = true;
  EXPECT_TRUE(is_certain_of({failure_at(10ms, exited(1)), fault})) << "it began before anybody was told to stop";
}

TEST(FirstCause, IsCertainWhereFactsTell) {
  EXPECT_TRUE(is_certain_of({failure_at(10ms, exited(1))}));
  EXPECT_TRUE(is_certain_of({failure_at(10ms, kKilled), failure_at(10ms, exited(1))})) << "a failure of its own";
  EXPECT_TRUE(is_certain_of({failure_at(10ms, exited(3)), failure_at(10ms, exited(1), {0})})) << "it is accused";
  auto own = failure_at(10ms, exited(3));
  own.is_own_error = true;
  EXPECT_TRUE(is_certain_of({own, failure_at(10ms, exited(1))}));
  auto missed = failure_at(10ms, exited(1));
  missed.missed_a_peer = true;
  EXPECT_TRUE(is_certain_of({missed, failure_at(20ms, exited(3))}));
  EXPECT_FALSE(is_certain_of({missed})) << "whose connection ended has not failed";
  auto same = failure_at(10ms, exited(1));
  same.message = "no module named torch";
  EXPECT_TRUE(is_certain_of({same, same})) << "all fail of one reason";
}

TEST(FirstCause, ErrorOfItsOwnGoesBeforeAll) {
  auto own = failure_at(1h, exited(1));
  own.is_own_error = true;
  EXPECT_EQ(first_of({failure_at(10ms, exited(1), {1}), own, failure_at(20ms, kKilled)}), 1u);
  own.ending = kLeft;
  EXPECT_EQ(first_of({failure_at(10ms, exited(1), {1}), own}), 1u) << "it was stopped before it ended";
}

// 20 nodes of 8 workers, all but one of which miss a worker of the last node, whose end takes long.
TEST_F(Job, TheCauseThatIsReportedLastOfALargeJobIsNotDropped) {
  constexpr std::uint64_t kNodes = 20;
  hello.workers = 8;
  begin(kNodes, kNodes);
  for (std::uint64_t id = 1; id <= kNodes; ++id) join(id, "h" + std::to_string(id), static_cast<int>(id - 1), id == 1);
  ASSERT_EQ(started.size(), kNodes);
  for (std::uint64_t id = 1; id < kNodes; ++id) {
    std::vector<FailureReport> failures;
    for (int i = 0; i < 8; ++i) {
      failures.push_back(failure(started.at(id).rank_first + i, exited(1)));
      failures.back().accused = {started.at(kNodes).rank_first};
    }
    ends(id, failures);
  }
  auto cause = failure(started.at(kNodes).rank_first, kKilled, 9s);
  cause.was_ending = true;
  cause.stderr_tail = {"last words"};
  ends(kNodes, {cause}, 7);
  EXPECT_EQ(finished.at(1).exit_code, 137);
  ASSERT_TRUE(finished.at(1).cause);
  EXPECT_EQ(finished.at(1).cause->rank, started.at(kNodes).rank_first);
  EXPECT_EQ(finished.at(1).cause->stderr_tail, (std::vector<std::string>{"last words"}));
}

// More failures come before it than a verdict has room for.
TEST_F(Job, TheFailureThatWasSeenFirstIsToldThoughItsNodeEndedLast) {
  constexpr std::uint64_t kNodes = 12;
  begin(kNodes, kNodes);
  for (std::uint64_t id = 1; id <= kNodes; ++id) join(id, "h" + std::to_string(id), static_cast<int>(id - 1), id == 1);
  auto cause = failure(0, exited(3), 9s);
  cause.is_own_error = true;
  ends(1, {cause});
  for (std::uint64_t id = 2; id <= kNodes; ++id) {
    auto victim = failure(started.at(id).rank_first, exited(1), id == kNodes ? 7s : 8s);
    victim.accused = {0};
    ends(id, {victim});
  }
  EXPECT_EQ(finished.at(1).cause->rank, 0);
  EXPECT_EQ(finished.at(1).seen_first, started.at(kNodes).rank_first);
  EXPECT_EQ(finished.at(1).consequences.front().rank, started.at(kNodes).rank_first);
  EXPECT_EQ(finished.at(1).consequences.size(), kFailuresMax);
}

// A node's own first cause is not that of the job, if others accuse another of its workers.
TEST_F(Job, TheCauseKeepsItsLastWordsThoughItsNodeHeldAnotherOneForFirst) {
  hello.workers = 2;
  begin(2, 2);
  join(1, "a", 0, true);
  join(2, "b", 1);
  auto first = failure(2, exited(1), 1s), second = failure(3, exited(1), 1s);
  first.stderr_tail = {"of 2"};
  second.stderr_tail = {"of 3"};
  ends(2, {first, second});
  auto victim = failure(0, exited(1), 1s);
  victim.accused = {3};
  ends(1, {victim});
  ASSERT_TRUE(finished.at(1).cause);
  EXPECT_EQ(finished.at(1).cause->rank, 3);
  EXPECT_EQ(finished.at(1).cause->stderr_tail, (std::vector<std::string>{"of 3"}));
}

TEST_F(Job, ALostNodeForWhichTheOthersLeftIsTheReason) {
  begin(2, 2, 1);
  join(1, "a", {}, true);
  join(2, "b");
  falls_silent(2);
  auto victim = failure(0, exited(1));
  victim.accused = {started.at(2).rank_first};
  ends(1, {victim});
  join(3, "c");
  EXPECT_THAT(started.at(1).why.value(), HasSubstr("(host b) was lost"));
}

TEST_F(Job, AStopSaysWhetherAnotherRoundIsToFollow) {
  begin(1, 2, 1);
  join(1, "a", {}, true);
  pass(10s);
  pass(10s);
  join(2, "b");
  EXPECT_TRUE(stopped.at(1).back().reseat) << "for newcomers";
  ends(1, {}, 2);
  says(2, RoundFailed{1, "x"});
  EXPECT_TRUE(stopped.at(1).back().reseat) << "the budget is left";
  ends(1, {}, 2);
  ends(2, {failure(2, exited(1))}, 1);
  ASSERT_EQ(started.at(2).restart_count, 1);
  says(2, RoundFailed{2, "x"});
  EXPECT_FALSE(stopped.at(1).back().reseat) << "it is spent";
  leaves(2);
  EXPECT_TRUE(stopped.at(1).back().reseat) << "a loss costs nothing";
  says(1, StopAsked{SIGTERM});
  EXPECT_FALSE(stopped.at(1).back().reseat) << "the job is stopped";
  EXPECT_EQ(stopped.at(1).back().signal_number, SIGTERM);

  begin(1, 1, 1);
  stopped.clear();
  join(1, "a", {}, true);
  says(1, StopAsked{SIGTERM});
  EXPECT_FALSE(stopped.at(1).front().reseat);
}

TEST_F(Job, NoRoundFollowsWhereTheGreaterPartIsSilent) {
  begin(1, 3, 5);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  falls_silent(2);
  EXPECT_TRUE(stopped.at(1).back().reseat);
  falls_silent(3);
  EXPECT_FALSE(stopped.at(1).back().reseat);
}

TEST_F(Job, RanksThatHangAreToldToEveryNode) {
  begin(3, 3, 1);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  says(1, RoundFailed{0, "a collective's deadline passed", {3}});
  EXPECT_THAT(stopped.at(1).back().hung_ranks, ElementsAre(3)) << "the node that says so too";
  EXPECT_THAT(stopped.at(2).back().hung_ranks, ElementsAre(3));
  says(3, RoundFailed{0, "a collective's deadline passed", {3}});
  EXPECT_EQ(stopped.at(2).size(), 1u) << "nothing new";
  says(3, RoundFailed{0, "a collective's deadline passed", {2, 3}});
  EXPECT_THAT(stopped.at(2).back().hung_ranks, ElementsAre(2, 3));
  std::vector<int> many;
  for (int rank = 0; rank < 1000; ++rank) many.push_back(rank);
  says(3, RoundFailed{0, "x", many});
  EXPECT_EQ(stopped.at(2).back().hung_ranks.size(), kHungRanksMax);
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  ends(3, {failure(4, exited(1))}, 1);
  says(1, RoundFailed{1, "x"});
  EXPECT_THAT(stopped.at(1).back().hung_ranks, IsEmpty()) << "of the round before";
}

TEST_F(Job, ANodeThatLeavesWhileTheStoreIsOpenedAddsToTheReason) {
  begin(1, 3, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  stores_open = false;
  ends(1, {failure(0, exited(1))}, 1);
  for (const std::uint64_t id : {2u, 3u}) ends(id, {}, 2);
  leaves(2);
  leaves(3);
  says(1, StoreOpened{opened.back().second.round.number, 4000});
  EXPECT_THAT(started.at(1).why.value(),
              AllOf(HasSubstr("rank 0 ended with exit code 1"), HasSubstr("then"), HasSubstr("host h3")));
  EXPECT_THAT(started.at(1).why.value(), Not(HasSubstr("host h2"))) << "it stays short";
}

TEST_F(Job, WorkersThatWereStoppedWithoutANamedFailureAreNoSuccess) {
  begin(2, 2, 1);
  join(1, "a");
  join(2, "b");
  says(2, RoundFailed{0, "x"});
  ends(1, {}, 2);
  ends(2);
  EXPECT_EQ(finished.at(1).exit_code, 1);
  EXPECT_THAT(finished.at(1).what.value(), HasSubstr("stopped (x)"));

  finished.clear();
  begin(2, 2, 1);
  join(1, "a");
  join(2, "b");
  ends(2, {failure(2, exited(0))});
  ends(1, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, 1) << "a failure that is none";
}

TEST_F(Job, ANodeThatNeverEndsItsWorkersIsLetGo) {
  begin(1, 2, 1);
  hello.grace = 45s;
  join(1, "a", {}, true);
  hello.grace = 30s;
  join(2, "b");
  says(1, RoundFailed{0, "x"});
  ends(1, {failure(0, exited(1))}, 1);
  pass(149s);
  EXPECT_TRUE(refused.empty()) << "twice the longest grace, and a minute";
  pass(1s);
  EXPECT_THAT(refused.at(2).what, HasSubstr("did not end its workers"));
  EXPECT_EQ(started.at(1).round.number, 1u);
}

TEST_F(Job, ANodesGraceCountsForAnHourAtMost) {
  begin(1, 2, 1);
  hello.grace = 2h;
  join(1, "a", {}, true);
  hello.grace = 1000h;
  join(2, "b");
  says(1, RoundFailed{0, "x"});
  ends(1, {failure(0, exited(1))}, 1);
  pass(4h + 59s);
  EXPECT_TRUE(refused.empty()) << "that of the endpoint's node counts";
  pass(1s);
  EXPECT_EQ(refused.count(2), 1u);

  refused.clear();
  begin(1, 2, 1);
  join(1, "a");
  join(2, "b");
  says(1, RoundFailed{0, "x"});
  ends(1, {failure(0, exited(1))}, 1);
  pass(2h + 59s);
  EXPECT_TRUE(refused.empty());
  pass(1s);
  EXPECT_EQ(refused.count(2), 1u);
}

}  // namespace
}  // namespace ddp::rendezvous
