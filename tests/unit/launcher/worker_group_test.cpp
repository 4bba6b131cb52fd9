#include "launcher/worker_group/worker_group.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <set>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

constexpr Ending kOk{Ending::Kind::exited, 0, false};
Ending exited(int code) { return {Ending::Kind::exited, code, false}; }
Ending killed(int signal_number) { return {Ending::Kind::killed, signal_number, false}; }

std::string list(const std::vector<int>& local_ranks) {
  std::string out;
  for (const int local_rank : local_ranks) out += std::to_string(local_rank);
  return out;
}

// One letter per action, with what matters of it: "S01" SpawnWorkers of local ranks 0 and 1, "N0" SeatWorkers (new
// seats), "R0" TellRoundOver, "T15" SignalTree ("T15-1": not to 1), "W1:15" SignalWorker, "K1" KillWorker, "O"
// KillOrphans, "K" KillTree, "B" TellStarted, "F2" TellFailure of local rank 2, "E" TellEnded.
std::string text_of(const WorkerGroup::Actions& actions) {
  std::string out;
  for (const auto& action : actions) {
    if (!out.empty()) out += ' ';
    if (const auto* spawn = std::get_if<SpawnWorkers>(&action)) out += "S" + list(spawn->local_ranks);
    if (const auto* seat = std::get_if<SeatWorkers>(&action)) out += "N" + list(seat->local_ranks);
    if (const auto* tell = std::get_if<TellRoundOver>(&action)) out += "R" + list(tell->local_ranks);
    if (const auto* signal = std::get_if<SignalWorker>(&action))
      out += "W" + std::to_string(signal->local_rank) + ":" + std::to_string(signal->signal_number);
    if (const auto* kill = std::get_if<KillWorker>(&action)) out += "K" + std::to_string(kill->local_rank);
    if (std::holds_alternative<TellStarted>(action)) out += "B";
    if (const auto* signal = std::get_if<SignalTree>(&action))
      out += "T" + std::to_string(signal->signal_number) + (signal->spared.empty() ? "" : "-" + list(signal->spared));
    if (std::holds_alternative<KillOrphans>(action)) out += "O";
    if (std::holds_alternative<KillTree>(action)) out += "K";
    if (const auto* tell = std::get_if<TellFailure>(&action)) out += "F" + std::to_string(tell->failure.local_rank);
    if (std::holds_alternative<TellEnded>(action)) out += "E";
  }
  return out;
}

class Group : public ::testing::Test {
 protected:
  void begin(int workers, std::chrono::milliseconds grace = 30s) {
    group.emplace(WorkerGroupOptions{workers, grace, signal_window});
    std::vector<int> all;
    for (int local_rank = 0; local_rank < workers; ++local_rank) all.push_back(local_rank);
    EXPECT_EQ(step({BeginRound{}}), "S" + list(all));
  }
  void begin_with_seats(int workers, std::chrono::milliseconds grace = 30s) {
    begin(workers, grace);
    for (int local_rank = 0; local_rank < workers; ++local_rank)
      step({WorkerStarted{local_rank}, WorkerSaidHello{local_rank, true}});
  }
  void begin_with_stops(int workers, std::chrono::milliseconds grace = 30s, bool takes_seats = false) {
    begin(workers, grace);
    for (int local_rank = 0; local_rank < workers; ++local_rank)
      step({WorkerStarted{local_rank}, WorkerSaidHello{local_rank, takes_seats, true}});
  }
  std::string step(std::vector<WorkerGroupEvent> events) {
    last = group->step(events, now);
    return text_of(last);
  }
  std::string tick_at(std::chrono::milliseconds later) {
    now += later;
    last = group->tick(now);
    return text_of(last);
  }
  const TellEnded& ended() const { return std::get<TellEnded>(last.at(last.size() - 1)); }

  std::chrono::milliseconds signal_window{0};
  std::optional<WorkerGroup> group;
  WorkerGroup::Actions last;
  TimePoint now{1h};
};

TEST_F(Group, AllEndWell) {
  begin(2);
  EXPECT_EQ(step({WorkerEnded{1, kOk}}), "");
  EXPECT_EQ(step({WorkerEnded{0, kOk}, TreeEmpty{}}), "T15 E");
  EXPECT_TRUE(ended().failures.empty());
  EXPECT_EQ(ended().stopped, 0);
}

TEST_F(Group, WhatOutlivesAGoodEndGetsTheGraceToo) {
  begin(1);
  EXPECT_EQ(step({WorkerEnded{0, kOk}}), "T15");
  EXPECT_EQ(group->next_deadline(), now + 30s);
  EXPECT_EQ(tick_at(29s), "");
  EXPECT_EQ(tick_at(1s), "K");
  EXPECT_EQ(step({TreeEmpty{}}), "E");
}

TEST_F(Group, TheFirstFailureStopsTheOthersWhichAreConsequences) {
  begin(3);
  now += 5s;
  EXPECT_EQ(step({WorkerEnded{2, exited(3)}}), "F2 O T15");
  EXPECT_EQ(step({WorkerEnded{0, exited(9)}}), "");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}}), "E");
  ASSERT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().failures[0].local_rank, 2);
  EXPECT_EQ(ended().failures[0].after, 5s);
  EXPECT_EQ(ended().failures[0].at, now);
  EXPECT_EQ(ended().stopped, 2);
}

TEST_F(Group, OfSeveralFailuresInOneBatchTheKilledOneComesFirstAndNoneIsLost) {
  begin(4);
  EXPECT_EQ(step({WorkerEnded{0, exited(1)}, WorkerEnded{1, killed(SIGKILL)}, WorkerEnded{2, exited(1)}}), "F1 O T15");
  EXPECT_EQ(step({WorkerEnded{3, exited(1)}, TreeEmpty{}}), "E");
  ASSERT_EQ(ended().failures.size(), 3u);
  EXPECT_EQ(ended().failures[0].local_rank, 1);
  EXPECT_EQ(ended().failures[1].local_rank, 0);
  EXPECT_EQ(ended().stopped, 1);
}

TEST_F(Group, RoundsFollowEachOther) {
  begin(2);
  EXPECT_EQ(step({WorkerEnded{0, exited(1)}}), "F0 O T15");
  EXPECT_EQ(step({BeginRound{}}), "") << "while processes of the last one are left";
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}}), "E");
  EXPECT_EQ(step({BeginRound{}}), "S01");
  EXPECT_EQ(step({WorkerEnded{0, kOk}, WorkerEnded{1, kOk}, TreeEmpty{}}), "T15 E");
  EXPECT_TRUE(ended().failures.empty());
}

TEST_F(Group, AnEmptyTreeMeansNothingWhileWorkersAreBeingSpawned) {
  begin(2);
  EXPECT_EQ(step({WorkerEnded{0, kOk}, TreeEmpty{}}), "");
  EXPECT_EQ(step({WorkerEnded{1, kOk}, TreeEmpty{}}), "T15 E");
}

TEST_F(Group, GraceThenKill) {
  begin(2, 3s);
  step({WorkerEnded{0, exited(1)}});
  EXPECT_EQ(tick_at(2999ms), "");
  EXPECT_EQ(tick_at(1ms), "K");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}, TreeEmpty{}}), "E");
}

TEST_F(Group, WhatCannotBeKilledIsReported) {
  begin(1, 1s);
  step({StopSignal{SIGTERM}});
  EXPECT_EQ(tick_at(1s), "K");
  EXPECT_EQ(tick_at(30s), "E");
  EXPECT_TRUE(ended().tree_survived);
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGKILL)}, TreeEmpty{}}), "");
}

TEST_F(Group, AStopSignalIsPassedOnAndNothingBeginsAfterIt) {
  begin(2);
  EXPECT_EQ(step({StopSignal{SIGINT}}), "T2");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGINT)}, WorkerEnded{1, exited(1)}, TreeEmpty{}}), "T15 E");
  EXPECT_TRUE(ended().failures.empty());
  EXPECT_EQ(ended().stopped, 2);
  ASSERT_TRUE(ended().signalled) << "what fails elsewhere from then on follows from it";
  EXPECT_EQ(ended().signalled->at, now);
  EXPECT_EQ(step({BeginRound{}}), "E") << "a round that was on its way ends at once";
  EXPECT_EQ(ended().stopped, 2) << "its workers have done nothing of it";
}

TEST_F(Group, ASecondStopSignalKillsButAnEchoOfTheFirstDoesNot) {
  begin(1);
  EXPECT_EQ(step({StopSignal{SIGINT}}), "T2");
  now += 50ms;
  EXPECT_EQ(step({StopSignal{SIGINT}}), "");
  now += 300ms;
  EXPECT_EQ(step({StopSignal{SIGINT}}), "K");
  EXPECT_EQ(step({StopSignal{SIGINT}}), "");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGKILL)}, TreeEmpty{}}), "E");
}

TEST_F(Group, MembershipStopsAndKills) {
  begin(2);
  EXPECT_EQ(step({StopWorkers{SIGTERM}}), "T15");
  EXPECT_EQ(step({StopWorkers{SIGTERM}}), "");
  EXPECT_EQ(step({StopWorkers{SIGTERM, true}}), "K");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGKILL)}, WorkerEnded{1, killed(SIGKILL)}, TreeEmpty{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
  EXPECT_EQ(step({StopWorkers{SIGTERM}}), "") << "nothing runs";
}

TEST_F(Group, AFailureBeforeTheStopOfOthersComesThroughIsToldAsSuch) {
  begin(2);
  EXPECT_EQ(step({WorkerEnded{1, exited(5)}, StopWorkers{SIGTERM}}), "F1 O T15");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}, TreeEmpty{}}), "E");
  EXPECT_EQ(ended().failures.size(), 1u);
}

TEST_F(Group, WhoWasKilledByOthersHasFailedThoughAnotherNodeMissedItAndTheStopCameFirst) {
  for (const bool is_before_our_signal : {false, true}) {
    SCOPED_TRACE(is_before_our_signal);
    begin(3);
    EXPECT_EQ(step({StopWorkers{SIGTERM}}), "T15");
    if (!is_before_our_signal) step({TreeSignalled{SIGTERM}});  // a process with much memory takes a while to end
    EXPECT_EQ(step({WorkerEnded{0, killed(is_before_our_signal ? SIGSEGV : SIGKILL)}}), "");
    step({TreeSignalled{SIGTERM}});
    EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}}), "");
    EXPECT_EQ(step({WorkerEnded{2, killed(SIGSEGV)}, TreeEmpty{}}), "E") << "be it in its handler of our signal";
    ASSERT_EQ(ended().failures.size(), 1u);
    EXPECT_EQ(ended().failures[0].local_rank, 0);
    EXPECT_EQ(ended().stopped, 2);
  }
}

TEST_F(Group, EndThatHadBegunAtTheFirstFailureIsAFailureOfItsOwn) {
  begin(4, 1s);
  EXPECT_EQ(step({WorkerEnded{0, exited(1)}}), "F0 O T15");
  EXPECT_EQ(step({WorkerEnded{1, exited(3), true}}), "");
  EXPECT_EQ(step({WorkerEnded{2, exited(1)}}), "") << "a consequence";
  step({TreeSignalled{SIGTERM}});
  EXPECT_EQ(tick_at(1s), "K");
  EXPECT_EQ(step({WorkerEnded{3, killed(SIGKILL), true}, TreeEmpty{}}), "E");
  ASSERT_EQ(ended().failures.size(), 3u);
  EXPECT_EQ(ended().failures[1].local_rank, 1);
  EXPECT_TRUE(ended().failures[1].was_ending);
  EXPECT_EQ(ended().failures[2].local_rank, 3) << "it was killed before our SIGKILL";
  EXPECT_EQ(ended().stopped, 1);
}

TEST_F(Group, EndThatHadBegunAtTheFirstFailureIsToldToBeNoLaterThanThat) {
  begin(3, 10s);
  step({WorkerEnded{0, exited(1), true}});
  const auto looked = now;
  now += 2s;
  step({TreeSignalled{SIGTERM}, WorkerEnded{1, exited(3), true}, WorkerEnded{2, killed(SIGTERM)}, TreeEmpty{}});
  ASSERT_EQ(ended().failures.size(), 2u);
  EXPECT_EQ(ended().failures[0].ending_since, looked);
  EXPECT_EQ(ended().failures[1].ending_since, looked);
  EXPECT_EQ(ended().failures[1].at, looked + 2s);
  begin(2, 10s);
  step({WorkerEnded{0, exited(1), true}, TreeSignalled{SIGTERM}, WorkerEnded{1, exited(3), true}, TreeEmpty{}});
  EXPECT_EQ(ended().failures.at(1).ending_since, now) << "each round has its look";
}

TEST_F(Group, EndThatHadBegunAtTheFirstSignalIsToldToBeNoLaterThanThat) {
  begin(2, 10s);
  step({StopWorkers{SIGTERM}});
  now += 10ms;
  step({TreeSignalled{SIGTERM}});
  const auto looked = now;
  now += 2s;
  step({WorkerEnded{0, exited(3), true}, WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}});
  ASSERT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().failures[0].ending_since, looked);
}

TEST_F(Group, OurKillThatOvertakesTheGuardiansLookIsNoFailure) {
  begin(2, 0s);
  EXPECT_EQ(step({WorkerEnded{0, exited(4)}}), "F0 O T15");
  EXPECT_EQ(tick_at(0s), "K");
  step({TreeSignalled{SIGTERM}});
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL), true}, TreeEmpty{}}), "E");
  ASSERT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().failures[0].local_rank, 0);
  EXPECT_EQ(ended().stopped, 1);
}

TEST_F(Group, OurKillOfWorkersThatGotNoSignalBeforeIsNoFailure) {
  begin_with_stops(1, 1s);
  step({StopAtStep{}});
  EXPECT_EQ(tick_at(1s), "K");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGKILL), true}, TreeEmpty{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
}

TEST_F(Group, EndThatHadBegunAtTheUsersStopIsNoFailure) {
  begin(1);
  step({StopSignal{SIGTERM}});
  EXPECT_EQ(step({WorkerEnded{0, exited(3), true}, TreeEmpty{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
}

using DepartureKind = worker_link::Departure::Kind;

TEST_F(Group, MissedWorkerThatDiesOfOurSignalInSilenceHasHung) {
  const WorkerDeparted departed{0, {0, DepartureKind::for_others, {1}, "rank 1 did not come", {}, true, {1}}};
  const WorkerDeparted answer{1, {0, DepartureKind::for_others, {0}, "rank 0 left", {}, true, {}}};
  enum class What { hung, answers, exits, is_not_missed };
  for (const auto what : {What::hung, What::answers, What::exits, What::is_not_missed}) {
    SCOPED_TRACE(static_cast<int>(what));
    begin(2, 10s);
    step({departed});
    step({WorkerEnded{0, exited(1)}});
    const auto* told = std::get_if<TellFailure>(&last.front());
    ASSERT_NE(told, nullptr);
    EXPECT_EQ(told->hung_ranks, std::vector<int>{1});
    step({StopWorkers{SIGTERM, false, false, what == What::is_not_missed ? std::vector<int>() : std::vector<int>{1},
                      true}});
    if (what == What::answers) step({answer});
    EXPECT_EQ(tick_at(1s), "T15");
    step({TreeSignalled{SIGTERM}, WorkerEnded{1, what == What::exits ? exited(1) : killed(SIGTERM)}, TreeEmpty{}});
    if (what != What::hung) {
      EXPECT_EQ(ended().failures.size(), 1u);
      EXPECT_EQ(ended().stopped, 1);
      continue;
    }
    ASSERT_EQ(ended().failures.size(), 2u);
    EXPECT_TRUE(ended().failures[1].is_hung);
    EXPECT_EQ(ended().failures[1].ending, killed(SIGTERM));
    EXPECT_EQ(ended().stopped, 0);
  }
}

TEST_F(Group, WorkerThatLeftForAnErrorOfItsOwnMayEndByItself) {
  for (const auto kind : {DepartureKind::own_error, DepartureKind::in_order}) {
    begin(3);
    const auto departed = now;
    step({WorkerDeparted{1, {0, kind, {}, ""}}});
    now += 300ms;
    EXPECT_EQ(step({WorkerEnded{0, exited(1)}}), "F0 O T15-1") << "it missed the other";
    EXPECT_EQ(step({WorkerEnded{1, exited(3)}}), "");
    EXPECT_EQ(step({WorkerEnded{2, killed(SIGTERM)}, TreeEmpty{}}), "E");
    ASSERT_EQ(ended().failures.size(), 2u);
    EXPECT_EQ(ended().failures[1].local_rank, 1);
    EXPECT_EQ(ended().failures[1].ending, exited(3));
    EXPECT_EQ(ended().failures[1].is_own_error, kind == DepartureKind::own_error);
    EXPECT_EQ(ended().failures[1].at, kind == DepartureKind::own_error ? departed : now);
    EXPECT_EQ(ended().stopped, 1);
  }
}

TEST_F(Group, WorkerThatGivesUpItsGroupBecauseOfOurSignalHasNotFailed) {
  begin(2);
  EXPECT_EQ(step({WorkerEnded{0, exited(1)}}), "F0 O T15");
  step({WorkerDeparted{1, {0, DepartureKind::own_error, {}, "SIGTERM"}}});
  EXPECT_EQ(step({WorkerEnded{1, exited(143)}, TreeEmpty{}}), "E");
  ASSERT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().failures[0].local_rank, 0);
}

TEST_F(Group, DepartureThatIsSaidAgainKeepsItsTime) {
  begin(2);
  const auto departed = now;
  const WorkerDeparted own_error{1, {0, DepartureKind::own_error, {}, ""}};
  step({own_error});
  now += 300ms;
  step({own_error});
  step({WorkerEnded{1, exited(3)}});
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}, TreeEmpty{}}), "E");
  ASSERT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().failures[0].at, departed);
}

TEST_F(Group, WorkerThatLeftIsSignalledAfterAMomentLikeTheOthers) {
  begin(2);
  step({WorkerDeparted{1, {0, DepartureKind::own_error, {}, "aborted"}}});
  EXPECT_EQ(step({StopWorkers{SIGTERM}}), "T15-1");
  EXPECT_EQ(group->next_deadline(), now + 2s);
  EXPECT_EQ(tick_at(2s), "T15");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}, WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}}), "E");
  ASSERT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().failures[0].ending, (Ending{Ending::Kind::left, 0, false})) << "the signal was ours";
  EXPECT_EQ(ended().failures[0].message, "aborted");
}

TEST_F(Group, WorkerThatLeftForAnotherSaysForWhomAndIsNotSpared) {
  begin(3);
  step({WorkerDeparted{0, {0, DepartureKind::for_others, {5}, "rank 5 ended"}}});
  step({WorkerDeparted{2, {0, DepartureKind::for_others, {5}, "rank 5 ended"}}});
  EXPECT_EQ(step({WorkerEnded{0, exited(1)}}), "F0 O T15-1");
  EXPECT_EQ(tick_at(1s), "T15");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}, WorkerEnded{2, exited(1)}, TreeEmpty{}}), "E");
  ASSERT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().failures[0].accused, std::vector{5});
  EXPECT_EQ(ended().failures[0].message, "rank 5 ended");
}

TEST_F(Group, WorkerThatLeftIsNotSparedAtTheUsersStop) {
  begin(1);
  step({WorkerDeparted{0, {0, DepartureKind::own_error, {}, ""}}});
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "T15");
}

TEST_F(Group, WorkerWithASeatThatLeavesForAnErrorOfItsOwnIsNotSignalled) {
  begin_with_seats(2);
  step({WorkerDeparted{1, {0, DepartureKind::own_error, {}, ""}}});
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "R01");
  EXPECT_EQ(step({WorkerSaidHello{1, false}}), "");
  EXPECT_EQ(step({WorkerEnded{1, exited(3)}}), "");
  EXPECT_EQ(step({WorkerLeft{0, "why"}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  ASSERT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().failures[0].local_rank, 1);
}

TEST_F(Group, WhoIsKilledWhileDdprunItselfIsToldToStopHasNotFailed) {
  begin(2);
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "T15");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGKILL)}, WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
  EXPECT_EQ(ended().stopped, 2);
}

TEST_F(Group, WhoWasKilledByOthersWhileItIsOnlyToldToLeaveHasFailed) {
  begin_with_seats(2);
  EXPECT_EQ(step({WorkerSaidHello{1, false}}), "");
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "R0 W1:15");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}}), "") << "that has the signal";
  EXPECT_EQ(step({WorkerLeft{0, "why"}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  ASSERT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().failures[0].local_rank, 1);
  EXPECT_EQ(ended().stopped, 1);
}

TEST_F(Group, WhoHasLeftAndIsKilledByUsHasNotFailed) {
  begin_with_seats(3);
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "R012");
  EXPECT_EQ(step({WorkerLeft{0, "why"}}), "");
  EXPECT_EQ(step({WorkerSaidHello{0, false}}), "K0") << "it would wait in vain";
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGKILL)}}), "");
  EXPECT_EQ(step({WorkerLeft{1, "why"}, WorkerLeft{2, "why"}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
  EXPECT_EQ(ended().stopped, 3);
}

TEST_F(Group, WhoFailedByLeavingDoesNotFailAgainByItsDeath) {
  begin_with_seats(2);
  step({WorkerLeft{0, "a peer did not come", {1}}});
  EXPECT_EQ(step({WorkerEnded{0, exited(1)}}), "");
  EXPECT_EQ(step({WorkerLeft{1, "why"}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  EXPECT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().stopped, 1);
}

TEST_F(Group, WhoWasNotSpawnedYetWhenItsRoundWasStoppedHasNotFailed) {
  begin(2);
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, false, {0, 1}}}), "T15");
  EXPECT_EQ(step({WorkerNotSpawned{0}, WorkerNotSpawned{1}, TreeEmpty{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
  EXPECT_EQ(ended().stopped, 2);
}

TEST_F(Group, ARoundHasStartedWhenEveryWorkerIsSpawned) {
  begin(2);
  EXPECT_EQ(step({WorkerStarted{1}}), "");
  EXPECT_EQ(step({WorkerStarted{0}}), "B");
}

TEST_F(Group, WhoTakesSeatsIsToldAndWaitsAndTheOthersAreSpawned) {
  begin_with_seats(3);
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}}), "F1 O R02");
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "");
  EXPECT_EQ(step({OrphansGone{}, WorkerLeft{0}}), "");
  EXPECT_EQ(step({WorkerLeft{2}}), "O") << "also what other workers may have left behind since";
  EXPECT_EQ(step({OrphansGone{}}), "E");
  EXPECT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().stopped, 2);
  EXPECT_EQ(group->waiting(), (std::vector<int>{0, 2}));
  EXPECT_EQ(step({BeginRound{}}), "S1 N02");
  EXPECT_EQ(step({WorkerStarted{1}}), "B");
  EXPECT_TRUE(group->waiting().empty());
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGSEGV)}}), "F0 O R2 W1:15") << "the new one has not said that it takes seats";
}

TEST_F(Group, TheEndOfARoundWaitsForTheAnswerToItsLastQuestionOnly) {
  begin_with_seats(2);
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}}), "F1 O R0");
  EXPECT_EQ(step({WorkerLeft{0}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "") << "that is the answer to the first";
  EXPECT_EQ(step({OrphansGone{}}), "E");
}

TEST_F(Group, WhereAllWaitTheRoundStartsWithTheirSeats) {
  begin_with_seats(2);
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "R01");
  EXPECT_EQ(step({WorkerLeft{0}, WorkerLeft{1}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
  EXPECT_EQ(step({BeginRound{}}), "N01 B");
}

TEST_F(Group, WhereNobodyTakesSeatsAStopIsTheSameWhetherAnotherRoundFollowsOrNot) {
  begin(2);
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "T15");
  EXPECT_EQ(step({WorkerEnded{0, kOk}, WorkerEnded{1, kOk}, TreeEmpty{}}), "E");
}

TEST_F(Group, WhereNoRoundFollowsThoseThatWaitAreSignalledToo) {
  begin_with_seats(2);
  EXPECT_EQ(step({WorkerEnded{1, exited(1)}}), "F1 O R0");
  EXPECT_EQ(step({WorkerLeft{0}}), "O");
  EXPECT_EQ(step({StopWorkers{SIGTERM}}), "T15");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}, TreeEmpty{}}), "E");
  EXPECT_EQ(ended().failures.size(), 1u);
}

TEST_F(Group, WhoDoesNotLeaveIsKilledWhenTheGraceIsOverAndWhoHasLeftIsNot) {
  begin_with_seats(3, 3s);
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "R012");
  EXPECT_EQ(step({WorkerLeft{1}}), "");
  EXPECT_EQ(tick_at(2999ms), "");
  EXPECT_EQ(tick_at(1ms), "K0 K2");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGKILL)}}), "");
  EXPECT_EQ(step({WorkerEnded{2, killed(SIGKILL)}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  EXPECT_TRUE(ended().failures.empty()) << "they were stopped, and did not fail";
  EXPECT_EQ(step({BeginRound{}}), "S02 N1");
}

TEST_F(Group, AHungWorkerIsKilledIfItGivesNoSignOfLifeAndIsTheFailure) {
  begin_with_seats(3);
  EXPECT_EQ(step({WorkerLeft{0, "rank 1 is missing", {1}}}), "F0 R12");
  EXPECT_EQ(std::get<TellFailure>(last.front()).hung_ranks, std::vector<int>{1});
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true, {1}}}), "");
  EXPECT_EQ(tick_at(999ms), "");
  EXPECT_EQ(tick_at(1ms), "K1");
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true, {1}}}), "") << "once";
  EXPECT_EQ(step({WorkerLeft{2, "rank 1 is missing", {1}}}), "");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  ASSERT_EQ(ended().failures.size(), 2u);
  EXPECT_EQ(ended().failures[0].message, "rank 1 is missing");
  EXPECT_EQ(ended().failures[1].local_rank, 1);
  EXPECT_EQ(ended().stopped, 1);
}

TEST_F(Group, NobodyIsKilledOnAnotherRanksWordAloneIfItLeavesTheRoundItself) {
  begin_with_seats(2);
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true, {1}}}), "R01");
  EXPECT_EQ(step({WorkerLeft{1}, WorkerLeft{0}}), "O");
  EXPECT_EQ(tick_at(1s), "");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
}

TEST_F(Group, AHungWorkerThatTakesNoSeatsIsTheFailureToo) {
  begin_with_seats(2);
  step({WorkerSaidHello{1, false}});
  EXPECT_EQ(step({WorkerLeft{0, "rank 1 is missing", {1}}}), "F0 W1:15");
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true, {1}}}), "");
  EXPECT_EQ(tick_at(29s), "") << "others alone say that it hangs: it has the grace";
  EXPECT_EQ(tick_at(1s), "K1");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  ASSERT_EQ(ended().failures.size(), 2u);
  EXPECT_TRUE(ended().failures[1].is_hung);
}

TEST_F(Group, NobodyIsKilledOnAnotherRanksWordAloneIfNoRoundFollows) {
  begin_with_seats(2);
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, false, {1}}}), "T15");
  EXPECT_EQ(tick_at(29s), "");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}, WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
}

TEST_F(Group, WorkersThatHaveSaidNothingAreSignalledAMomentLaterIfAnotherLeftForOthers) {
  begin(3);
  const auto departure = [](int local_rank, std::vector<int> unreached) {
    WorkerDeparted out{local_rank, {0, DepartureKind::for_others, {5}, "rank 5 does not come"}};
    out.departure.unreached = std::move(unreached);
    out.departure.was_in_call = true;
    return out;
  };
  step({departure(0, {5, 6})});
  EXPECT_EQ(step({WorkerEnded{0, exited(1)}}), "F0 O T15-12");
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true, {}, true}}), "");
  step({departure(1, {5, 7})});
  EXPECT_EQ(step({WorkerEnded{1, exited(1)}}), "");
  EXPECT_EQ(tick_at(999ms), "");
  EXPECT_EQ(tick_at(1ms), "T15");
  EXPECT_EQ(step({WorkerEnded{2, killed(SIGTERM)}, TreeEmpty{}}), "E");
  EXPECT_EQ(ended().failures.size(), 2u);
  EXPECT_EQ(ended().unreached, (std::vector{5, 6, 7}));
  EXPECT_FALSE(ended().were_in_call) << "the last one did not say so";
}

TEST_F(Group, AFailureElsewhereThatIsForNobodyEndsTheWaitForWhatWorkersSay) {
  begin(2);
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true, {}, true}}), "T15-01");
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "T15");
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true, {}, true}}), "") << "once";
}

TEST_F(Group, WorkersSayWhetherTheyWereInACall) {
  begin_with_seats(2);
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "R01");
  EXPECT_EQ(step({WorkerLeft{0, "", {}, true}, WorkerLeft{1, "", {}, true}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  EXPECT_TRUE(ended().were_in_call);
  EXPECT_EQ(step({BeginRound{}}), "N01 B");
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "R01");
  EXPECT_EQ(step({WorkerLeft{0, "", {}, true}, WorkerLeft{1, "", {}, false}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  EXPECT_FALSE(ended().were_in_call);
}

TEST_F(Group, AWorkerSaidToHangThatHasLeftLivesOn) {
  begin_with_seats(2);
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}, WorkerLeft{1}}), "R01");
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true, {1}}}), "");
}

TEST_F(Group, WhoLeavesForAReasonThatIsNotKnownYetIsNoFailureForAMoment) {
  begin_with_seats(3);
  EXPECT_EQ(step({WorkerLeft{0, "rank 1 ended"}}), "");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}}), "F1 O R2");
  EXPECT_EQ(step({OrphansGone{}, WorkerLeft{2}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  ASSERT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().failures[0].local_rank, 1);

  EXPECT_EQ(step({BeginRound{}}), "S1 N02");
  EXPECT_EQ(step({WorkerLeft{0, "rank 5 of another host ended"}}), "");
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "R2 W1:15") << "membership knows of another node's failure";
}

TEST_F(Group, WhoLeavesForNoReasonAtAllIsAFailureItself) {
  begin_with_seats(2);
  EXPECT_EQ(step({WorkerLeft{0, "a connection broke"}}), "");
  EXPECT_EQ(tick_at(99ms), "");
  EXPECT_EQ(tick_at(1ms), "F0 R1");
  EXPECT_EQ(step({WorkerLeft{1, "rank 0 has left"}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  ASSERT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().failures[0].ending.kind, Ending::Kind::left);
  EXPECT_EQ(ended().failures[0].message, "a connection broke");
  EXPECT_EQ(ended().stopped, 1);
}

TEST_F(Group, WhoFailsWhileItIsOnlyToldToLeaveHasFailedByItself) {
  begin_with_seats(3);
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "R012");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGSEGV)}}), "");
  EXPECT_EQ(step({WorkerLeft{0}, WorkerLeft{2}}), "O");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  EXPECT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().stopped, 2);
}

TEST_F(Group, WhoTakesSeatsNoMoreGetsTheSignal) {
  begin_with_seats(2);
  EXPECT_EQ(step({WorkerSaidHello{1, false}}), "");
  EXPECT_EQ(step({StopWorkers{SIGTERM, false, true}}), "R0 W1:15");
  EXPECT_EQ(step({WorkerSaidHello{0, false}}), "W0:15") << "it had come to its end just then";
  EXPECT_EQ(step({WorkerSaidHello{0, false}}), "");
  EXPECT_EQ(step({WorkerEnded{0, kOk}}), "");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}}), "T15");
  EXPECT_EQ(step({TreeEmpty{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
}

TEST_F(Group, AWaitingWorkerThatDiesIsReplaced) {
  begin_with_seats(2);
  step({StopWorkers{SIGTERM, false, true}});
  EXPECT_EQ(step({WorkerLeft{0}, WorkerLeft{1}}), "O");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGKILL)}}), "O") << "what it leaves behind is not to be in the next round";
  EXPECT_EQ(step({OrphansGone{}}), "");
  EXPECT_EQ(step({OrphansGone{}}), "E");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}}), "O");
  EXPECT_EQ(step({BeginRound{}}), "S01");
}

TEST_F(Group, AWaitingWorkerThatCannotBeToldAnythingIsKilled) {
  begin_with_seats(2);
  step({StopWorkers{SIGTERM, false, true}});
  EXPECT_EQ(step({WorkerLeft{0}, WorkerSaidHello{0, false}}), "K0");
}

TEST_F(Group, AtTheEndOfTheJobThoseThatWaitAreStopped) {
  begin_with_seats(1, 3s);
  step({StopWorkers{SIGTERM, false, true}});
  step({WorkerLeft{0}});
  EXPECT_EQ(step({OrphansGone{}}), "E");
  EXPECT_EQ(step({EndJob{}}), "T15");
  EXPECT_EQ(tick_at(3s), "K");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGKILL)}, TreeEmpty{}}), "E");
  EXPECT_EQ(step({EndJob{}}), "") << "nobody waits";
}

TEST_F(Group, ASecondStopSignalKillsThoseThatWaitToo) {
  begin_with_seats(2);
  EXPECT_EQ(step({WorkerEnded{1, exited(1)}}), "F1 O R0");
  EXPECT_EQ(step({StopSignal{SIGINT}}), "") << "membership ends the job when the round has ended";
  now += 300ms;
  EXPECT_EQ(step({StopSignal{SIGINT}}), "K");
}

TEST_F(Group, OrphansThatCannotBeKilledEndTheRoundAsSurvivors) {
  begin_with_seats(2);
  step({StopWorkers{SIGTERM, false, true}});
  EXPECT_EQ(step({WorkerLeft{0}, WorkerLeft{1}}), "O");
  EXPECT_EQ(tick_at(30s), "E");
  EXPECT_TRUE(ended().tree_survived);
}

// --- a stop at one step ---

TEST_F(Group, WhereAllTakeStopsASignalGoesToNobodyAndTheyEndAtTheirStep) {
  begin_with_stops(2);
  EXPECT_TRUE(group->can_stop_at_step());
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "");
  now += 2s;
  EXPECT_EQ(step({StopAtStep{}}), "") << "the grace began with the signal";
  EXPECT_EQ(group->next_deadline(), now + 28s);
  EXPECT_EQ(step({WorkerStopping{0}, WorkerStopping{1}, WorkerEnded{1, kOk}}), "");
  EXPECT_EQ(step({WorkerEnded{0, kOk}}), "T15") << "what outlives them";
  EXPECT_EQ(group->next_deadline(), now + 28s);
  EXPECT_EQ(step({TreeEmpty{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
  EXPECT_EQ(ended().stopped, 0);
  EXPECT_EQ(ended().stopped_at_step, 2);
}

TEST_F(Group, WhereOneTakesNoStopsASignalGoesToAll) {
  begin_with_stops(2);
  step({WorkerSaidHello{1, false, false}});
  EXPECT_FALSE(group->can_stop_at_step());
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "T15");
}

TEST_F(Group, WhoAsksForCoreFilesGetsThem) {
  begin_with_stops(2);
  EXPECT_EQ(step({StopSignal{SIGQUIT}}), "T3");
}

TEST_F(Group, WhoHasEndedWellNeedsNoStop) {
  begin(2);
  EXPECT_EQ(step({WorkerSaidHello{1, false, true}, WorkerEnded{0, kOk}}), "");
  EXPECT_EQ(group->voters(), (std::vector<Voter>{{1, true}}));
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "");
  EXPECT_EQ(step({WorkerEnded{1, kOk}, TreeEmpty{}}), "T15 E");
  EXPECT_EQ(ended().stopped_at_step, 0) << "the training had come to its end before the step";
  EXPECT_EQ(ended().stopped, 0);
}

TEST_F(Group, TheStepOfAnotherNodesSignalBeginsTheGraceHereToo) {
  begin_with_stops(1, 3s);
  EXPECT_EQ(step({StopAtStep{}}), "");
  now += 1s;
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "") << "the first one here: no wish to kill";
  EXPECT_EQ(group->next_deadline(), now + 2s);
  now += 300ms;
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "K");
}

TEST_F(Group, WhereNobodySaysAtWhichStepTheSignalGoesToAllWithinTheSameGrace) {
  begin_with_stops(2, 10s);
  EXPECT_EQ(step({StopSignal{SIGINT}}), "");
  EXPECT_EQ(tick_at(2999ms), "");
  EXPECT_EQ(tick_at(1ms), "T2");
  EXPECT_EQ(step({StopAtStep{}}), "") << "too late";
  EXPECT_EQ(group->next_deadline(), now + 7s);
  EXPECT_EQ(tick_at(7s), "K");
}

TEST_F(Group, HalfOfAShortGraceIsLeftForTheSignal) {
  begin_with_stops(2, 1s);
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "");
  EXPECT_EQ(group->next_deadline(), now + 500ms);
}

TEST_F(Group, WhoDoesNotComeToTheStepWithinTheGraceIsKilled) {
  begin_with_stops(2, 3s);
  step({StopSignal{SIGTERM}, StopAtStep{}});
  step({WorkerStopping{0}, WorkerStopping{1}, WorkerEnded{0, kOk}});
  EXPECT_EQ(tick_at(2999ms), "");
  EXPECT_EQ(tick_at(1ms), "K");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}, TreeEmpty{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
  EXPECT_EQ(ended().stopped, 1);
  EXPECT_EQ(ended().stopped_at_step, 1);
}

TEST_F(Group, ASecondSignalKillsWhoRunsOnToTheStepButAnEchoDoesNot) {
  begin_with_stops(1);
  step({StopSignal{SIGINT}});
  now += 50ms;
  EXPECT_EQ(step({StopSignal{SIGINT}}), "");
  now += 300ms;
  EXPECT_EQ(step({StopSignal{SIGINT}}), "K");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGKILL)}, TreeEmpty{}}), "E");
  EXPECT_EQ(ended().stopped, 1);
}

TEST_F(Group, WhereNoStepIsAgreedOnTheOrdinaryStopFollowsWithinTheSameGrace) {
  begin_with_stops(3, 10s);
  step({StopSignal{SIGINT}});
  now += 1s;
  EXPECT_EQ(step({WorkerStopping{2}, StopWorkers{SIGINT}}), "T2");
  EXPECT_EQ(group->next_deadline(), now + 9s);
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGINT)}, WorkerEnded{2, kOk}}), "");
  EXPECT_EQ(tick_at(9s), "K");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}, TreeEmpty{}}), "E");
  EXPECT_TRUE(ended().failures.empty());
  EXPECT_EQ(ended().stopped, 2);
  EXPECT_EQ(ended().stopped_at_step, 1) << "it had come to the step";
}

TEST_F(Group, AFailureOnTheWayToTheStepIsOneAndStopsTheOthersForGood) {
  begin_with_stops(3, 30s, true);
  step({StopSignal{SIGTERM}});
  now += 2s;
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}}), "F1 O T15") << "they take seats, but no round follows";
  EXPECT_EQ(group->next_deadline(), now + 28s);
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}, WorkerEnded{2, killed(SIGTERM)}, TreeEmpty{}}), "E");
  EXPECT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().stopped, 2);
  EXPECT_EQ(ended().stopped_at_step, 0);
}

TEST_F(Group, WhoLeavesOnTheWayToTheStepIsAFailureIfNothingExplainsIt) {
  begin_with_stops(2, 30s, true);
  step({StopSignal{SIGTERM}});
  EXPECT_EQ(step({WorkerLeft{0, "a connection broke"}}), "");
  EXPECT_FALSE(group->can_stop_at_step());
  EXPECT_EQ(group->voters(), (std::vector<Voter>{{0, false}, {1, true}}));
  EXPECT_EQ(tick_at(100ms), "F0 T15");
}

TEST_F(Group, AfterAWarningAFailureBeginsTheNextRoundAsEver) {
  begin_with_stops(2, 30s, true);
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}}), "F1 O R0");
  step({WorkerLeft{0}, OrphansGone{}});
  EXPECT_EQ(step({OrphansGone{}}), "E");
  EXPECT_EQ(step({BeginRound{}}), "S1 N0");
  EXPECT_EQ(group->voters(), (std::vector<Voter>{{0, true}, {1, false}}))
      << "what a worker is does not change with its seat";
}

TEST_F(Group, TheEndOfTheJobStopsWorkersThatRunInTheOrdinaryWay) {
  begin_with_seats(2, 3s);
  EXPECT_EQ(step({EndJob{}}), "T15");
  EXPECT_EQ(tick_at(3s), "K");
}

// --- where a scheduler signals every process ---

class GroupUnderAScheduler : public Group {
 protected:
  GroupUnderAScheduler() { signal_window = 200ms; }

  // The first of two dies of it, the other of ddprun's stop.
  void both_die(Ending ending) {
    begin(2);
    EXPECT_EQ(step({WorkerEnded{0, ending}}), "F0 O T15") << "whatever it was, the others are stopped at once";
    EXPECT_EQ(step({TreeSignalled{SIGTERM}, WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}}), "");
    EXPECT_FALSE(group->is_idle());
  }
  void expect_no_failure(int signal_number, int stopped) const {
    EXPECT_TRUE(ended().failures.empty());
    EXPECT_EQ(ended().stopped, stopped);
    ASSERT_TRUE(ended().signalled);
    EXPECT_EQ(ended().signalled->signal_number, signal_number);
  }
};

TEST_F(GroupUnderAScheduler, AWorkerThatDiesBeforeDdprunHearsOfItsOwnSignalHasNotFailed) {
  for (const int number : {SIGTERM, SIGINT, SIGUSR1})
    for (const auto& ending : {killed(number), exited(128 + number)}) {
      SCOPED_TRACE(rendezvous::describe(ending));
      both_die(ending);
      const auto died = now;
      EXPECT_EQ(group->next_deadline(), now + 200ms);
      EXPECT_EQ(tick_at(199ms), "");
      EXPECT_EQ(step({number == SIGUSR1 ? WorkerGroupEvent(WarningSignal{number}) : StopSignal{number}}), "E");
      expect_no_failure(number, 2);
      EXPECT_EQ(ended().signalled->at, died);
      EXPECT_TRUE(group->is_idle());
    }
}

TEST_F(GroupUnderAScheduler, AWorkerThatDiesAfterDdprunsSignalHasNotFailedAndNothingIsWaitedFor) {
  begin(2);
  EXPECT_EQ(step({WarningSignal{SIGUSR1}}), "") << "it stops nobody";
  now += 200ms;
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGUSR1)}}), "F1 O T15");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}, TreeEmpty{}}), "E");
  expect_no_failure(SIGUSR1, 2);
}

TEST_F(GroupUnderAScheduler, WhoDiesOfItAloneHasFailedWhichIsKnownAfterAMoment) {
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    both_die(killed(number));
    EXPECT_EQ(tick_at(199ms), "");
    EXPECT_EQ(tick_at(1ms), "E");
    ASSERT_EQ(ended().failures.size(), 1u);
    EXPECT_EQ(ended().failures[0].local_rank, 0);
    EXPECT_EQ(ended().stopped, 1);
    EXPECT_FALSE(ended().signalled);
    EXPECT_EQ(step({BeginRound{}}), "S01") << "restarts as ever";
  }
}

TEST_F(GroupUnderAScheduler, ASignalThatComesMuchLaterOrCameMuchEarlierDoesNotExplainADeath) {
  begin(2);
  step({WorkerEnded{0, killed(SIGTERM)}});
  now += 201ms;
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "") << "the other one takes its time to stop";
  EXPECT_EQ(step({WorkerEnded{1, kOk}, TreeEmpty{}}), "E");
  EXPECT_EQ(ended().failures.size(), 1u);

  begin(1);
  step({WarningSignal{SIGUSR1}});
  now += 201ms;
  step({WorkerEnded{0, killed(SIGUSR1)}, TreeEmpty{}});
  EXPECT_EQ(tick_at(200ms), "E");
  EXPECT_EQ(ended().failures.size(), 1u);
}

TEST_F(GroupUnderAScheduler, WhoIsKilledForItsMemoryOrFailsByItselfHasFailedAtOnce) {
  for (const auto& ending : {killed(SIGKILL), killed(SIGSEGV), exited(1), exited(128 + SIGKILL)}) {
    begin(2);
    EXPECT_EQ(step({WorkerEnded{0, ending}}), "F0 O T15");
    EXPECT_EQ(step({TreeSignalled{SIGTERM}, WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}}), "E");
    EXPECT_EQ(ended().failures.size(), 1u);
  }
}

TEST_F(GroupUnderAScheduler, WhoEndedOfItButIsHeardOfAfterAnotherThatFailedForWantOfItExplainsThat) {
  for (const bool takes_seats : {false, true}) {
    SCOPED_TRACE(takes_seats);
    takes_seats ? begin_with_seats(2) : begin(2);
    EXPECT_EQ(step({WorkerEnded{1, exited(1)}}), takes_seats ? "F1 O R0" : "F1 O T15");
    now += 10ms;
    step({WorkerEnded{0, killed(SIGTERM)}});
    step({TreeSignalled{SIGTERM}, TreeEmpty{}});
    EXPECT_FALSE(group->is_idle()) << "ddprun may get its own yet";
    EXPECT_EQ(step({StopSignal{SIGTERM}}), "E");
    expect_no_failure(SIGTERM, 2);
  }
}

TEST_F(GroupUnderAScheduler, WithoutASignalOfDdprunsOwnBothHaveFailed_TheOneThatWasKilledFirst) {
  begin(2);
  step({WorkerEnded{1, exited(1)}});
  step({WorkerEnded{0, killed(SIGTERM)}, TreeSignalled{SIGTERM}, TreeEmpty{}});
  EXPECT_EQ(tick_at(200ms), "E");
  ASSERT_EQ(ended().failures.size(), 2u);
  EXPECT_EQ(ended().failures[0].local_rank, 0);
  EXPECT_EQ(ended().stopped, 0);
}

TEST_F(GroupUnderAScheduler, WhatFailsAfterSuchADeathFollowsFromItButWhatFailedBeforeDoesNot) {
  begin(3);
  step({WorkerEnded{1, exited(1)}, WorkerEnded{0, killed(SIGTERM)}});
  step({WorkerEnded{2, kOk}, TreeEmpty{}});
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "E");
  expect_no_failure(SIGTERM, 3);

  begin(2);
  step({WorkerEnded{0, killed(SIGKILL)}, WorkerEnded{1, killed(SIGTERM)}, StopSignal{SIGTERM}});
  EXPECT_EQ(step({TreeEmpty{}}), "E");
  ASSERT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(ended().failures[0].local_rank, 0);
  EXPECT_EQ(ended().stopped, 1);
}

TEST_F(GroupUnderAScheduler, WhoDiesOfTheSignalOnTheWayToTheStepHasNotFailed) {
  begin_with_stops(2);
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "");
  now += 50ms;
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}}), "F0 O T15") << "the others can't come to a step without it";
  EXPECT_EQ(step({WorkerEnded{1, kOk}, TreeEmpty{}}), "E");
  expect_no_failure(SIGTERM, 2);
}

TEST_F(GroupUnderAScheduler, WhoHasComeToTheStepHasStoppedThereAlsoIfAWarningEndsIt) {
  begin_with_stops(3);
  step({WarningSignal{SIGUSR1}});
  step({WorkerStopping{0}, WorkerStopping{1}, WorkerStopping{2}});
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGUSR1)}}), "");
  EXPECT_EQ(step({WorkerEnded{1, kOk}}), "");
  EXPECT_EQ(step({WorkerEnded{2, killed(SIGUSR1)}, TreeEmpty{}}), "T15 E");
  EXPECT_EQ(ended().stopped_at_step, 3);
  EXPECT_TRUE(ended().failures.empty());
  EXPECT_FALSE(ended().signalled);
}

TEST_F(GroupUnderAScheduler, WhoIsEndedByAStopSignalAtTheStepMayHaveLostItsState) {
  begin_with_stops(1);
  step({StopSignal{SIGTERM}, StopAtStep{}, WorkerStopping{0}});
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}, TreeEmpty{}}), "F0 O T15 E");
  EXPECT_EQ(ended().stopped_at_step, 0);
  expect_no_failure(SIGTERM, 1);
}

TEST_F(GroupUnderAScheduler, AfterAWarningNothingIsKilledBeforeAStopSignalAndItsGrace) {
  begin_with_stops(2, 3s);
  step({WarningSignal{SIGUSR1}});
  EXPECT_FALSE(group->next_deadline());
  EXPECT_EQ(tick_at(1h), "");
  EXPECT_EQ(step({WorkerStopping{0}, StopSignal{SIGTERM}, StopAtStep{}}), "");
  EXPECT_EQ(tick_at(2999ms), "");
  EXPECT_EQ(tick_at(1ms), "K");
}

TEST_F(GroupUnderAScheduler, ThoseThatWaitForASeatMeanwhileAreStoppedWhereNoRoundFollows) {
  begin_with_seats(2);
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}}), "F1 O R0");
  EXPECT_EQ(step({WorkerLeft{0}}), "O");
  EXPECT_EQ(step({OrphansGone{}, OrphansGone{}}), "") << "all is over, but why is not known";
  EXPECT_EQ(group->waiting(), std::vector<int>{0});
  EXPECT_EQ(step({StopWorkers{SIGTERM}}), "T15");
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}, TreeEmpty{}}), "E");
  expect_no_failure(SIGTERM, 2);
}

TEST_F(GroupUnderAScheduler, ThoseThatWaitForASeatMeanwhileGetItWhereItWasAFailure) {
  begin_with_seats(3);
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}}), "F1 O R02");
  EXPECT_EQ(step({WorkerLeft{0}, WorkerLeft{2}}), "O");
  EXPECT_EQ(step({OrphansGone{}, OrphansGone{}}), "");
  EXPECT_EQ(step({WorkerEnded{2, killed(SIGKILL)}}), "O") << "it waited";
  EXPECT_EQ(tick_at(200ms), "E");
  EXPECT_EQ(ended().failures.size(), 1u);
  EXPECT_EQ(step({BeginRound{}}), "S12 N0");
}

TEST_F(GroupUnderAScheduler, SeveralThatDieOfItAreAllNoFailures) {
  begin_with_seats(2);
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}}), "F0 O R1");
  now += 10ms;
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}}), "T15");
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "E");
  expect_no_failure(SIGTERM, 2);
  EXPECT_EQ(ended().signalled->at, now - 10ms);
}

TEST_F(GroupUnderAScheduler, WhereItIsKnownAtOnceNobodyIsToWaitForASeat) {
  begin_with_seats(2);
  step({WarningSignal{SIGUSR1}});
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGUSR1)}}), "F0 O T15");
}

TEST_F(GroupUnderAScheduler, WhereNobodyIsLeftAStopMeanwhileSignalsNobody) {
  begin_with_seats(2);
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}}), "F0 O R1");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}}), "T15");
  EXPECT_EQ(step({TreeEmpty{}}), "");
  EXPECT_EQ(step({StopWorkers{SIGTERM}}), "") << "nothing would tell of an empty tree again";
  EXPECT_EQ(tick_at(200ms), "E");
}

TEST_F(GroupUnderAScheduler, ASecondSignalAfterTheRoundHasEndedIsWithoutEffect) {
  both_die(killed(SIGINT));
  EXPECT_EQ(step({StopSignal{SIGINT}}), "E");
  now += 300ms;
  EXPECT_EQ(step({StopSignal{SIGINT}}), "");
  EXPECT_EQ(step({BeginRound{}}), "E") << "nothing begins any more";
}

TEST_F(Group, WhereNoSchedulerSignalsEveryProcessADeathIsJudgedAtOnce) {
  begin(2);
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}}), "F0 O T15");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}}), "E");
  EXPECT_EQ(ended().failures.size(), 1u);

  begin(1);
  step({WarningSignal{SIGUSR1}, WorkerEnded{0, killed(SIGUSR1)}});
  EXPECT_EQ(step({TreeEmpty{}}), "E");
  EXPECT_EQ(ended().failures.size(), 1u) << "a handler's fault";
}

// Random histories against what must always hold, with a model of the processes that obeys the actions.
TEST(WorkerGroupHistories, KeepTheirPromises) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    const WorkerGroupOptions options{static_cast<int>(1 + below(4)), 10s, below(2) == 0 ? 200ms : 0ms};
    WorkerGroup group(options);
    TimePoint now{1h};
    std::set<int> running;  // workers; -1 stands for a descendant that outlives them
    const bool takes_stops = below(2) == 0;
    int begun = 0, ended = 0, ended_at_step = 0;
    bool killed_all = false, is_tree_told = false;  // empty, since it last changed
    std::optional<TimePoint> stopping_since;
    const auto perform = [&](const WorkerGroup::Actions& actions) {
      for (const auto& action : actions) {
        if (std::holds_alternative<SpawnWorkers>(action)) {
          ASSERT_TRUE(running.empty()) << "a round began while processes of the last one were left";
          for (int rank = 0; rank < options.workers; ++rank) running.insert(rank);
          if (below(2) == 0) running.insert(-1);
          killed_all = is_tree_told = false;
          stopping_since.reset();
          ended_at_step = 0;
          ++begun;
        }
        if (std::holds_alternative<SignalTree>(action) && !stopping_since) stopping_since = now;
        if (std::holds_alternative<KillTree>(action)) {
          killed_all = true;
          is_tree_told = false;
        }
        if (const auto* tell = std::get_if<TellEnded>(&action)) {
          ASSERT_TRUE(running.empty());
          ASSERT_EQ(tell->stopped_at_step, ended_at_step);
          ASSERT_GE(tell->stopped, 0);
          ASSERT_LE(tell->stopped + tell->stopped_at_step + static_cast<int>(tell->failures.size()), options.workers);
          const bool is_held = !tell->failures.empty() && is_schedulers_signal(tell->failures[0].ending);
          ASSERT_TRUE(!is_held || now >= tell->failures[0].at + options.signal_window) << "judged too early";
          ++ended;
        }
      }
    };
    for (int rounds = 0; rounds < 3; ++rounds) {
      const int ended_before = ended;
      ended_at_step = 0;
      perform(group.step({BeginRound{}}, now));
      if (takes_stops)
        for (const int who : running)
          if (who >= 0) perform(group.step({WorkerSaidHello{who, false, true}}, now));
      for (int i = 0; i < 1000 && ended == ended_before; ++i) {
        now += std::chrono::milliseconds(below(700));
        if (group.next_deadline() && now >= *group.next_deadline()) perform(group.tick(now));
        ASSERT_FALSE(::testing::Test::HasFatalFailure());
        const bool grace_is_over = stopping_since && now > *stopping_since + options.grace + 1s;
        ASSERT_TRUE(!grace_is_over || killed_all) << "no kill after the grace";
        std::vector<WorkerGroupEvent> events;
        for (const int who : std::set<int>(running)) {
          if (!killed_all && below(stopping_since ? 8 : 40) != 0) continue;
          if (who == -1 && !killed_all) continue;  // it obeys nothing but SIGKILL
          running.erase(who);
          if (takes_stops && who >= 0 && stopping_since && below(2) == 0) {
            events.push_back(WorkerStopping{who});
            events.push_back(WorkerEnded{who, kOk});
            ++ended_at_step;
          } else if (who >= 0)
            events.push_back(WorkerEnded{who, below(3) != 0   ? kOk
                                              : below(2) != 0 ? exited(1)
                                                              : killed(below(2) != 0 ? SIGKILL : SIGTERM)});
        }
        if (below(60) == 0) events.push_back(WarningSignal{SIGUSR1});
        if (below(90) == 0) events.push_back(StopWorkers{SIGTERM, below(4) == 0});
        if (below(300) == 0) {
          if (group.can_stop_at_step() && !stopping_since) stopping_since = now;
          events.push_back(below(2) == 0 && group.can_stop_at_step() ? WorkerGroupEvent(StopAtStep{})
                                                                     : StopSignal{SIGTERM});
        }
        if (running.empty() && !std::exchange(is_tree_told, true)) events.push_back(TreeEmpty{});
        if (!events.empty()) perform(group.step(events, now));
        ASSERT_FALSE(::testing::Test::HasFatalFailure());
      }
      ASSERT_EQ(ended, ended_before + 1) << "the round never ended";
    }
    ASSERT_GE(begun, 1);
  }
}

// The same with workers that take seats: every order of hellos, departures, deaths and stops.
TEST(WorkerGroupHistories, WithSeatsARoundEndsOnlyWhenAllHaveEndedOrLeft) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    const WorkerGroupOptions options{static_cast<int>(1 + below(4)), 10s, below(2) == 0 ? 200ms : 0ms};
    WorkerGroup group(options);
    TimePoint now{1h};
    struct Process {
      bool runs = false, takes_seats = false, has_left = false, is_told = false, is_killed = false;
    };
    std::vector<Process> workers(static_cast<std::size_t>(options.workers));
    int orphans = 0, orphans_asked = 0, ended = 0;
    bool is_job_over = false;
    const auto at = [&](int rank) -> Process& { return workers[static_cast<std::size_t>(rank)]; };
    const auto perform = [&](const WorkerGroup::Actions& actions) {
      for (const auto& action : actions) {
        if (const auto* spawn = std::get_if<SpawnWorkers>(&action))
          for (const int rank : spawn->local_ranks) {
            ASSERT_FALSE(at(rank).runs);
            at(rank) = {.runs = true};
          }
        if (const auto* seat = std::get_if<SeatWorkers>(&action))
          for (const int rank : seat->local_ranks) {
            ASSERT_TRUE(at(rank).runs && at(rank).has_left) << "a seat for who does not wait";
            at(rank).has_left = at(rank).is_told = false;
          }
        if (const auto* told = std::get_if<TellRoundOver>(&action))
          for (const int rank : told->local_ranks) {
            at(rank).is_told = true;
          }
        if (const auto* kill = std::get_if<KillWorker>(&action)) at(kill->local_rank).is_killed = true;
        if (std::holds_alternative<KillTree>(action))
          for (auto& worker : workers) worker.is_killed = true;
        if (std::holds_alternative<KillOrphans>(action)) ++orphans_asked;
        if (const auto* tell = std::get_if<TellEnded>(&action)) {
          ++ended;
          ASSERT_FALSE(tell->tree_survived);
          for (const auto& worker : workers)
            ASSERT_TRUE(!worker.runs || worker.has_left) << "who takes part was forgotten";
          ASSERT_EQ(orphans, 0) << "what an ended worker left behind is there";
          const auto waiting =
              static_cast<std::size_t>(std::count_if(workers.begin(), workers.end(), [](auto& w) { return w.runs; }));
          ASSERT_EQ(group.waiting().size(), waiting);
        }
      }
    };
    for (int rounds = 0; rounds < 4 && !is_job_over; ++rounds) {
      const int ended_before = ended;
      perform(group.step({BeginRound{}}, now));
      const bool is_reseated = below(4) != 0;
      for (int i = 0; i < 2000 && ended == ended_before; ++i) {
        now += std::chrono::milliseconds(below(300));
        if (group.next_deadline() && now >= *group.next_deadline()) perform(group.tick(now));
        ASSERT_FALSE(::testing::Test::HasFatalFailure());
        std::vector<WorkerGroupEvent> events;
        for (int rank = 0; rank < options.workers; ++rank) {
          auto& worker = at(rank);
          if (!worker.runs) continue;
          if (worker.is_killed || below(150) == 0) {
            worker = {};
            orphans += below(3) == 0 ? 1 : 0;
            events.emplace_back(WorkerEnded{rank, below(3) == 0 ? kOk : killed(below(2) == 0 ? SIGKILL : SIGTERM)});
          } else if (worker.takes_seats && !worker.has_left && (worker.is_told ? below(10) == 0 : below(200) == 0)) {
            worker.has_left = true;
            events.emplace_back(WorkerLeft{rank, "why", {}});
          } else if (below(20) == 0 && !worker.has_left) {
            worker.takes_seats = below(8) != 0;
            events.emplace_back(WorkerSaidHello{rank, worker.takes_seats});
          }
        }
        if (below(100) == 0)
          events.emplace_back(StopWorkers{SIGTERM, below(30) == 0, is_reseated,
                                          below(3) == 0 ? std::vector<int>{0} : std::vector<int>{}});
        if (orphans_asked > 0 && below(2) == 0) {
          orphans = 0;
          for (; orphans_asked > 0; --orphans_asked) events.emplace_back(OrphansGone{});
        }
        if (std::none_of(workers.begin(), workers.end(), [](auto& w) { return w.runs; })) {
          orphans = 0;
          events.emplace_back(TreeEmpty{});
        }
        if (!events.empty()) perform(group.step(events, now));
        ASSERT_FALSE(::testing::Test::HasFatalFailure());
      }
      ASSERT_EQ(ended, ended_before + 1) << "the round never ended";
    }
  }
}

}  // namespace
}  // namespace ddp::launcher
