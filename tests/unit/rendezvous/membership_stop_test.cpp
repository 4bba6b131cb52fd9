// ddprun is told to stop: at one step where all workers take part in that, else by the signal.
#include "membership_job.hpp"

#include <cerrno>

namespace ddp::rendezvous {
namespace {

class StopAtOneStep : public Job {
 protected:
  StopAtOneStep() { takes_stops = true; }

  void two_nodes_run(int restarts_max = 0) {
    begin(2, 2, restarts_max);
    join(1, "a", 0, true);
    join(2, "b", 1);
    for (const std::uint64_t id : {1, 2}) says(id, RoundStarted{0});
  }
  void answers(std::uint64_t id, std::optional<std::uint64_t> call) {
    says(id, StopReady{started.at(id).round.number, call});
  }
  // Its workers come to the agreed step, and end well.
  void stops_at_step(std::uint64_t id, int workers = 2) {
    RoundEnded ended{started.at(id).round.number, {}, 0, false};
    ended.stopped_at_step = workers;
    says(id, ended);
  }
};

TEST_F(StopAtOneStep, TheGreatestOfAllAnswersIsTheStep_AndTheJobEndsWith75) {
  two_nodes_run();
  says(2, StopAsked{SIGTERM});
  EXPECT_EQ(prepared.at(1), (std::vector{PrepareStop{0, false}}));
  EXPECT_EQ(prepared.at(2), (std::vector{PrepareStop{0, false}}));
  answers(2, 7);
  EXPECT_TRUE(stops_at.empty());
  answers(1, 9);
  EXPECT_EQ(stops_at.at(1), (std::vector{StopAt{0, 9, SIGTERM}}));
  EXPECT_EQ(stops_at.at(2), (std::vector{StopAt{0, 9, SIGTERM}}));
  pass(2s);
  EXPECT_TRUE(stopped.empty()) << "no signal";
  stops_at_step(1);
  stops_at_step(2);
  EXPECT_EQ(finished.at(1).exit_code, 75);
  EXPECT_EQ(finished.at(2).exit_code, 75);
  EXPECT_THAT(finished.at(2).what.value(), HasSubstr("4 workers stopped at one step"));
}

TEST_F(StopAtOneStep, WhereAWorkerTakesNoPartTheSignalStopsAll) {
  two_nodes_run();
  says(1, StopAsked{SIGTERM});
  answers(1, 7);
  answers(2, {});
  ASSERT_EQ(stopped[2].size(), 1u);
  EXPECT_EQ(stopped[2][0].signal_number, SIGTERM);
  EXPECT_THAT(stopped[2][0].why.value(), HasSubstr("SIGTERM to ddprun on host a"));
  EXPECT_EQ(stopped[1][0].why, std::nullopt) << "it knows";
  EXPECT_TRUE(stops_at.empty());
  ends(1, {}, 2);
  ends(2, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, 128 + SIGTERM);
}

TEST_F(StopAtOneStep, WhoDoesNotAnswerHoldsUpTheStopForASecond) {
  two_nodes_run();
  says(1, StopAsked{SIGTERM});
  answers(1, 7);
  pass(999ms);
  EXPECT_TRUE(stopped.empty());
  pass(1ms);
  EXPECT_EQ(stopped[1].size(), 1u);
  answers(2, 7);
  EXPECT_TRUE(stops_at.empty()) << "too late";
}

TEST_F(StopAtOneStep, WhoseWorkersDoNotEndIsStoppedAfterTheGrace) {
  hello.grace = 5s;
  two_nodes_run();
  says(1, StopAsked{SIGTERM});
  answers(1, 7);
  answers(2, 7);
  stops_at_step(1);
  pass(14s);
  EXPECT_TRUE(stopped.empty()) << "its agent kills them, and needs time for it";
  pass(1s);
  EXPECT_EQ(stopped[2].size(), 1u);
  ends(2, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, 128 + SIGTERM) << "not all have kept their state";
}

TEST_F(StopAtOneStep, ANodeThatKilledItsWorkersAfterTheGraceIsNoLoss) {
  two_nodes_run(3);
  says(1, StopAsked{SIGTERM});
  answers(1, 7);
  answers(2, 7);
  ends(1, {}, 2);
  EXPECT_THAT(stopped[2].at(0).why.value(), HasSubstr("SIGTERM"));
  ends(2, {}, 2);
  EXPECT_EQ(finished.at(2).exit_code, 128 + SIGTERM);
}

TEST_F(StopAtOneStep, ASecondSignalKills) {
  two_nodes_run();
  says(1, StopAsked{SIGINT});
  answers(1, 7);
  answers(2, 7);
  pass(1s);
  says(1, StopAsked{SIGINT});
  EXPECT_TRUE(stopped[2].at(0).kill);
}

TEST_F(StopAtOneStep, ASecondSignalWhileDisconnectedKills) {
  two_nodes_run();
  says(2, StopAsked{SIGINT});
  disconnects(2);
  comes_again(2, 3, held_by(2));
  says(3, StopAsked{SIGINT});
  EXPECT_TRUE(stopped.empty()) << "it is said again";
  disconnects(3);
  comes_again(2, 4, held_by(2));
  says(4, StopAsked{SIGINT, false, true});
  EXPECT_TRUE(stopped[1].at(0).kill);
}

TEST_F(StopAtOneStep, ASecondSignalKillsAlsoWhereTheFirstOneWasNotHeard) {
  two_nodes_run();
  says(2, StopAsked{SIGINT, false, true});
  EXPECT_TRUE(stopped[1].at(0).kill);
  EXPECT_EQ(stopped[1].at(0).signal_number, SIGINT);
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, 130);
}

TEST_F(StopAtOneStep, WorkersThatHadComeToTheEndOfTheirWorkAreASuccess) {
  two_nodes_run();
  says(1, StopAsked{SIGTERM});
  answers(1, 7);
  answers(2, 7);
  ends(1);
  ends(2);
  EXPECT_EQ(finished.at(1).exit_code, 0);
}

TEST_F(StopAtOneStep, AFailureOnTheWayIsTheVerdict) {
  two_nodes_run();
  says(1, StopAsked{SIGTERM});
  answers(1, 7);
  answers(2, 7);
  says(2, RoundFailed{0, "rank 3 exited with 9"});
  EXPECT_EQ(stopped[1].size(), 1u);
  EXPECT_FALSE(stopped[1][0].reseat);
  ends(2, {failure(3, exited(9))}, 1);
  stops_at_step(1);
  EXPECT_EQ(finished.at(1).exit_code, 9);
}

TEST_F(StopAtOneStep, ANodeThatIsLostLeavesNoneWhoseStateAllHaveKept) {
  two_nodes_run();
  says(1, StopAsked{SIGTERM});
  answers(1, 7);
  answers(2, 7);
  leaves(2);
  stops_at_step(1);
  EXPECT_EQ(finished.at(1).exit_code, kRendezvousFailed);
}

TEST_F(StopAtOneStep, ANodeThatComesAgainIsToldAgain) {
  two_nodes_run();
  says(1, StopAsked{SIGTERM});
  disconnects(2);
  comes_again(2, 3, held_by(2));
  EXPECT_EQ(prepared.at(3), (std::vector{PrepareStop{0, false}}));
  answers(1, 7);
  says(3, StopReady{0, 4});
  disconnects(3);
  comes_again(2, 4, held_by(2));
  EXPECT_EQ(stops_at.at(4), (std::vector{StopAt{0, 7, SIGTERM}}));
}

TEST_F(StopAtOneStep, AWarningWaitsUntilAllTakePart_AndStopsNobodyByASignal) {
  two_nodes_run();
  says(1, StopAsked{SIGUSR1, true});
  EXPECT_EQ(prepared.at(2), (std::vector{PrepareStop{0, true}}));
  pass(1h);
  EXPECT_TRUE(stopped.empty());
  answers(1, 0);
  says(2, StopAsked{SIGUSR1, true});
  EXPECT_EQ(prepared.at(1).size(), 1u) << "no worker waits at a step while another may never take part";
  answers(2, 0);
  EXPECT_EQ(prepared.at(1), (std::vector{PrepareStop{0, true}, PrepareStop{0, false}}));
  answers(1, 100);
  answers(2, 50);
  EXPECT_EQ(stops_at.at(1), (std::vector{StopAt{0, 100, 0}}));
  pass(1h);
  EXPECT_TRUE(stopped.empty());
  stops_at_step(1);
  stops_at_step(2);
  EXPECT_EQ(finished.at(1).exit_code, 75);
}

TEST_F(StopAtOneStep, AWarningThatIsNotAnsweredInTheEndComesToNothing) {
  two_nodes_run();
  says(1, StopAsked{SIGUSR1, true});
  answers(1, 0);
  answers(2, 0);
  answers(1, 100);
  pass(1s);
  answers(2, 50);
  EXPECT_TRUE(stops_at.empty()) << "workers of node 1 have given up their wait";
  EXPECT_TRUE(stopped.empty());
  says(2, StopAsked{SIGTERM});
  answers(1, 110);
  answers(2, 60);
  EXPECT_EQ(stops_at.at(1), (std::vector{StopAt{0, 110, SIGTERM}}));
}

TEST_F(StopAtOneStep, AWarningBeforeTheFirstRoundIsKept) {
  begin(2, 2);
  join(1, "a", 0, true);
  says(1, StopAsked{SIGUSR1, true});
  join(2, "b", 1);
  for (const std::uint64_t id : {1, 2}) says(id, RoundStarted{0});
  EXPECT_EQ(prepared.at(2), (std::vector{PrepareStop{0, true}}));
}

TEST_F(StopAtOneStep, AfterAWarningTheNextRoundIsAskedAnew) {
  two_nodes_run(3);
  says(1, StopAsked{SIGUSR1, true});
  answers(1, 0);
  answers(2, 0);
  answers(1, 100);
  says(2, RoundFailed{0, "rank 3 was killed"});
  ends(2, {failure(3, kKilled)}, 1);
  ends(1, {}, 2);
  prepared.clear();
  says(1, RoundStarted{1});
  EXPECT_TRUE(prepared.empty());
  says(2, RoundStarted{1});
  EXPECT_EQ(prepared.at(1), (std::vector{PrepareStop{1, true}}));
  answers(1, 0);
  answers(2, 0);
  answers(1, 1);
  EXPECT_TRUE(stops_at.empty()) << "what was answered of the round before counts no more";
  answers(2, 1);
  EXPECT_EQ(stops_at.at(2), (std::vector{StopAt{1, 1, 0}}));
}

TEST_F(StopAtOneStep, ASignalAfterAWarningKeepsTheStep_AndBeginsTheGrace) {
  two_nodes_run();
  says(1, StopAsked{SIGUSR1, true});
  answers(1, 0);
  answers(2, 0);
  answers(1, 100);
  answers(2, 50);
  says(2, StopAsked{SIGTERM});
  EXPECT_EQ(stops_at.at(1), (std::vector{StopAt{0, 100, 0}, StopAt{0, 100, SIGTERM}}));
  pass(41s);
  EXPECT_EQ(stopped[1].size(), 1u);
}

TEST_F(StopAtOneStep, AWorkerThatTheSignalKilledHasNotStoppedAtTheStep) {
  two_nodes_run(3);
  says(1, StopAsked{SIGTERM});
  answers(1, 7);
  answers(2, 7);
  RoundEnded ended{0, {failure(3, {Ending::Kind::killed, SIGTERM, false})}, 0, false};
  ended.stopped_at_step = 1;
  says(2, ended);
  stops_at_step(1);
  EXPECT_EQ(finished.at(1).exit_code, 128 + SIGTERM);
}

TEST_F(StopAtOneStep, AFailureOnTheWayIsNamedThoughRestartsAreLeft) {
  two_nodes_run(3);
  says(1, StopAsked{SIGTERM});
  answers(1, 7);
  answers(2, 7);
  ends(2, {failure(3, exited(9))}, 1);
  stops_at_step(1);
  EXPECT_EQ(finished.at(1).exit_code, 9);
}

TEST_F(StopAtOneStep, WhatWasAgreedWithAMembershipBeforeIsAStopAtOneStepToo) {
  begin(2, 2);
  hello.held = Held{{1600000000, 1, 4}, 0, 2, 0, true, false, {"nonce"}};
  join(1, "a");
  hello.held->group_rank = 1;
  says(1, StopAsked{SIGTERM});
  EXPECT_TRUE(stopped.empty()) << "workers may be writing their checkpoint";
  join(2, "b");
  EXPECT_EQ(prepared.at(2), (std::vector{PrepareStop{4, false}}));
  for (const std::uint64_t id : {1, 2}) {
    RoundEnded ended{4, {}, 0, false};
    ended.stopped_at_step = 2;
    says(id, ended);
  }
  EXPECT_EQ(finished.at(1).exit_code, 75);
}

// A round of two nodes under a membership that did not begin it. The one before has told these steps.
class StepToldBefore : public StopAtOneStep {
 protected:
  void both_come(std::optional<std::uint64_t> told_a, std::optional<std::uint64_t> told_b = {}) {
    begin(2, 2);
    hello.held = Held{{1600000000, 1, 4}, 0, 2, 0, true, false, {"nonce"}, told_a};
    join(1, "a");
    hello.held->group_rank = 1;
    hello.held->stop_call = told_b;
    join(2, "b");
  }
  void a_has_stopped() {
    RoundEnded ended{4, {}, 0, false};
    ended.stopped_at_step = 2;
    says(1, ended);
  }
};

TEST_F(StepToldBefore, StaysTheStepOfTheRound) {
  both_come(9);
  a_has_stopped();
  says(2, StopAsked{SIGTERM});
  says(2, StopReady{4, 7});
  EXPECT_EQ(stops_at[2], (std::vector{StopAt{4, 9, SIGTERM}}));
}

TEST_F(StepToldBefore, StaysTheStepIfTheNodeThatWasToldHasEndedAndLeft) {
  both_come(9);
  a_has_stopped();
  leaves(1);
  says(2, StopAsked{SIGTERM});
  says(2, StopReady{4, 7});
  EXPECT_EQ(stops_at[2], (std::vector{StopAt{4, 9, SIGTERM}}));
}

TEST_F(StepToldBefore, IsToldToAllThatRunAfterAWarning) {
  both_come({}, 9);
  says(2, StopAsked{SIGUSR1, true});
  for (const std::uint64_t call : {0, 5})
    for (const std::uint64_t id : {1, 2}) says(id, StopReady{4, call});
  for (const std::uint64_t id : {1, 2}) EXPECT_EQ(stops_at[id], (std::vector{StopAt{4, 9, 0}}));
}

TEST_F(StepToldBefore, IsNoStepForAWorkerThatIsBeyondIt) {
  both_come(9);
  a_has_stopped();
  says(2, StopAsked{SIGTERM});
  says(2, StopReady{4, 10});
  EXPECT_EQ(stops_at.count(2), 0u);
  ASSERT_EQ(stopped[2].size(), 1u);
  says(2, RoundEnded{4, {}, 2, false});
  EXPECT_EQ(finished.at(1).exit_code, 128 + SIGTERM) << "the workers have not stopped at one step";
}

TEST_F(StepToldBefore, IsNoneIfTwoNodesDisagree) {
  both_come(9, 8);
  says(2, StopAsked{SIGTERM});
  for (const std::uint64_t id : {1, 2}) says(id, StopReady{4, 5});
  EXPECT_TRUE(stops_at.empty());
  EXPECT_EQ(stopped[1].size(), 1u);
}

TEST_F(StopAtOneStep, ASignalAfterAWarningThatNotAllHaveAnsweredAsksThemOnceMore) {
  two_nodes_run();
  says(1, StopAsked{SIGUSR1, true});
  answers(1, 0);
  says(2, StopAsked{SIGTERM});
  EXPECT_EQ(prepared.at(2), (std::vector{PrepareStop{0, true}, PrepareStop{0, false}}));
  answers(2, {});
  EXPECT_EQ(stopped[1].size(), 1u);
}

TEST_F(StopAtOneStep, OnceAStepIsAgreedTheRoundIsNotStoppedForNewcomers) {
  begin(1, 3);
  join(1, "a", 0, true);
  pass(10s);
  says(1, RoundStarted{0});
  says(1, StopAsked{SIGUSR1, true});
  join(2, "b");
  pass(10s);
  EXPECT_EQ(stopped[1].size(), 1u) << "its workers may never take part";
  ends(1, {}, 2);
  for (const std::uint64_t id : {1, 2}) says(id, RoundStarted{1});
  for (const std::uint64_t call : {0, 7})
    for (const std::uint64_t id : {1, 2}) answers(id, call);
  join(3, "c");
  pass(1h);
  EXPECT_EQ(stopped[1].size(), 1u);
}

TEST_F(StopAtOneStep, AnAnswerOfAnotherRoundIsPassedOver) {
  two_nodes_run();
  says(1, StopAsked{SIGTERM});
  answers(1, 7);
  says(2, StopReady{4, 9});
  EXPECT_TRUE(stops_at.empty());
}

TEST_F(StopAtOneStep, AnAnswerThatNoWorkerIsLeftToGiveIsNoObjection) {
  two_nodes_run();
  says(1, StopAsked{SIGTERM});
  ends(2);
  answers(2, {});
  answers(1, 7);
  EXPECT_TRUE(stopped.empty());
  EXPECT_EQ(stops_at.at(1), (std::vector{StopAt{0, 7, SIGTERM}}));
}

TEST_F(StopAtOneStep, ANodeWhoseWorkersEndMeanwhileIsWaitedForNoLonger) {
  two_nodes_run();
  says(1, StopAsked{SIGUSR1, true});
  answers(1, 0);
  ends(2);
  answers(1, 7);
  EXPECT_EQ(stops_at.at(1), (std::vector{StopAt{0, 7, 0}}));
}

TEST_F(StopAtOneStep, ANodeWhoseWorkersHaveEndedIsNotAsked) {
  two_nodes_run();
  ends(2);
  says(1, StopAsked{SIGTERM});
  EXPECT_EQ(prepared.count(2), 0u);
  answers(1, 7);
  EXPECT_EQ(stops_at.at(1).size(), 1u);
}

// --- a scheduler signals every process ---

class SignalToEveryProcess : public Job {
 protected:
  void nodes_run(int count, int restarts_max) {
    begin(count, count, restarts_max);
    for (int id = 1; id <= count; ++id) join(static_cast<std::uint64_t>(id), "h" + std::to_string(id), id - 1, id == 1);
    for (int id = 1; id <= count; ++id) says(static_cast<std::uint64_t>(id), RoundStarted{0});
    pass(10s);
  }
  // Its workers were ended by the signal, since then.
  void ends_by(std::uint64_t id, int signal_number, std::chrono::milliseconds signalled_at) {
    RoundEnded ended{0, {}, 2, false};
    ended.signal_number = signal_number;
    ended.signalled_at = signalled_at;
    says(id, ended);
  }
  void expect_stopped_by(int signal_number) const {
    for (const auto& [id, its] : finished) {
      EXPECT_EQ(its.exit_code, 128 + signal_number);
      EXPECT_FALSE(its.cause);
    }
    EXPECT_FALSE(finished.empty());
    for (const auto& [id, start] : started) EXPECT_EQ(start.round.number, 0u) << "a restart";
  }
};

TEST_F(SignalToEveryProcess, WorkersThatDieBeforeAnyDdprunGetsItCostNoRestart) {
  nodes_run(2, 3);
  says(2, RoundFailed{0, "rank 2 was killed by SIGTERM", {}, 10s});
  EXPECT_TRUE(stopped[1].at(0).reseat) << "as far as is known";
  ends(1, {}, 2);
  says(1, StopAsked{SIGTERM});
  pass(150ms);
  says(2, StopAsked{SIGTERM});
  ends_by(2, SIGTERM, 10s);
  expect_stopped_by(SIGTERM);
}

TEST_F(SignalToEveryProcess, ANodeMayTellOfItBeforeAnybodyIsToldToStop) {
  nodes_run(2, 3);
  says(2, RoundFailed{0, "rank 2 was killed by SIGTERM", {}, 10s});
  ends_by(2, SIGTERM, 10s);
  ASSERT_EQ(stopped[1].size(), 2u) << "those that were to wait for a seat are told that there is none";
  EXPECT_FALSE(stopped[1][1].reseat);
  ends(1, {}, 2);
  expect_stopped_by(SIGTERM);
  EXPECT_THAT(finished.at(1).what.value(), HasSubstr("SIGTERM to the processes of host h2"));
  says(2, StopAsked{SIGTERM});
}

TEST_F(SignalToEveryProcess, AWarningThatWorkersDieOfIsAStop) {
  nodes_run(2, 3);
  says(1, StopAsked{SIGUSR1, true});
  ends_by(2, SIGUSR1, 10s);
  ASSERT_EQ(stopped[1].size(), 1u);
  EXPECT_EQ(stopped[1][0].signal_number, SIGTERM) << "the others may ignore the warning";
  EXPECT_FALSE(stopped[1][0].reseat);
  ends(1, {}, 2);
  expect_stopped_by(SIGUSR1);
}

TEST_F(SignalToEveryProcess, WhatFailsElsewhereForWantOfThoseThatDiedIsNoFailure) {
  for (const auto at : {10s + 5ms, 9750ms}) {  // reports of deaths are no more exact
    SCOPED_TRACE(at.count());
    finished.clear();
    started.clear();
    nodes_run(3, 0);
    says(2, RoundFailed{0, "rank 2 ended with exit code 1", {}, at});
    ends(2, {failure(2, exited(1), at), failure(3, {Ending::Kind::left, 0, false}, at),
             failure(3, {Ending::Kind::killed, SIGTERM, false}, at)});
    ends(1, {}, 2);
    ends_by(3, SIGINT, 10s);
    expect_stopped_by(SIGINT);
  }
}

TEST_F(SignalToEveryProcess, WhatFailedBeforeOrWasKilledForItsMemoryIsTheCause) {
  const struct {
    Ending ending;
    std::chrono::milliseconds at;
    int exit_code;
  } cases[] = {{exited(3), 9749ms, 3}, {kKilled, 10s, 137}, {{Ending::Kind::not_started, ENOENT, false}, 10s, 127}};
  for (const auto& c : cases) {
    SCOPED_TRACE(describe(c.ending));
    finished.clear();
    nodes_run(2, 0);
    says(2, RoundFailed{0, "rank 2 failed", {}, c.at});
    ends(2, {failure(2, c.ending, c.at)}, 1);
    ends_by(1, SIGTERM, 10s);
    EXPECT_EQ(finished.at(1).exit_code, c.exit_code);
  }
}

TEST_F(SignalToEveryProcess, WhatFailsBetweenTheSignalAndTheStopOfItsNodeIsNoFailure) {
  nodes_run(2, 0);
  says(1, StopAsked{SIGTERM});  // some worker takes no part in a stop at one step: all are stopped at once
  ASSERT_EQ(stopped[2].size(), 1u);
  ends(2, {failure(2, exited(1), 10s)}, 1);
  ends(1, {}, 2);
  expect_stopped_by(SIGTERM);
}

TEST_F(SignalToEveryProcess, WhoDiesOfAWarningAfterTheAgreedStepHasStoppedAtIt) {
  takes_stops = true;
  nodes_run(2, 3);
  says(1, StopAsked{SIGUSR1, true});
  for (const std::uint64_t call : {0, 7})
    for (const std::uint64_t id : {1, 2}) says(id, StopReady{0, call});
  for (const std::uint64_t id : {1, 2}) {
    RoundEnded ended{0, {}, 0, false};
    ended.stopped_at_step = id == 1 ? 2 : 1;  // the other one had come to the end of its work
    says(id, ended);
  }
  EXPECT_EQ(finished.at(2).exit_code, 75);
}

}  // namespace
}  // namespace ddp::rendezvous
