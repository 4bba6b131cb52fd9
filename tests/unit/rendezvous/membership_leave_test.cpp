// Nodes that leave a job which goes on, and the end of the host, which its guardian or the host itself proves.
#include "tests/unit/rendezvous/membership_job.hpp"

namespace ddp::rendezvous {
namespace {

constexpr auto kTermed = 128 + SIGTERM;

StopAsked leaves_by_sigterm() {
  StopAsked out{SIGTERM};
  out.leaves = true;
  return out;
}

StopAsked leaves_by_warning() { return {.signal_number = SIGUSR1, .is_warning = true, .leaves = true}; }

class Leave : public Job {
 protected:
  // These nodes of the first round answer both questions that a warning leads to.
  void agree_after_warning(const std::vector<std::uint64_t>& ids) {
    for (const std::uint64_t call : {0u, 7u})
      for (const auto id : ids) says(id, StopReady{0, call});
  }
  // Its two workers come to the agreed step, and end well.
  void stops_at_step(std::uint64_t id) {
    RoundEnded end{0, {}, 0, false};
    end.stopped_at_step = 2;
    says(id, end);
  }
  void SetUp() override { more_options.heartbeat_timeout = 3s; }
  // Nodes 1, which is the host, to `count`.
  void begin_with(int nodes_min, int count, int restarts_max = 0) {
    begin(nodes_min, count, restarts_max);
    for (int i = 1; i <= count; ++i) join(static_cast<std::uint64_t>(i), "h" + std::to_string(i), {}, i == 1);
    for (int i = 1; i <= count; ++i) says(static_cast<std::uint64_t>(i), RoundStarted{0});
  }
  // The next host has begun; it is node 2.
  void next_host_begins(int nodes_min, int nodes_max, LostHost lost) {
    auto held = held_by(2);
    held.is_established = true;
    more_options.lost = std::move(lost);
    begin(nodes_min, nodes_max);
    started.clear();
    stopped.clear();
    comes_again(2, 0, held);
  }
};

TEST_F(Leave, TheOthersGoOnWithoutTheLeaverAtNoCost) {
  begin_with(2, 3);
  says(3, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u, 3u}) {
    EXPECT_FALSE(prepared.at(id).front().is_warning);
    EXPECT_TRUE(stopped.at(id).front().reseat) << "no worker takes part in a stop at one step";
  }
  EXPECT_THAT(stopped.at(1).front().why.value(), AllOf(HasSubstr("host h3"), HasSubstr("leaves")));
  for (const std::uint64_t id : {1u, 2u, 3u}) ends(id, {}, 2);
  EXPECT_EQ(started.at(1).round.number, 0u) << "others may be told yet";
  pass(2s);
  EXPECT_EQ(finished.at(3).exit_code, kTermed);
  EXPECT_TRUE(finished.at(3).has_left);
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(started.at(1).world_size, 4);
  EXPECT_EQ(started.at(1).restart_count, 0);
  EXPECT_EQ(finished.count(1), 0u);
}

TEST_F(Leave, WhatFailsForWantOfTheLeaversWorkersIsNoFailure) {
  begin_with(2, 3);
  pass(10s);
  says(2, RoundFailed{0, "rank 2 lost a peer"});  // before the leaver is heard
  says(3, leaves_by_sigterm());
  ends(3, {}, 2);
  ends(2, {failure(2, exited(1), 9'900ms)}, 1);
  ends(1, {}, 2);
  pass(2s);
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(started.at(1).restart_count, 0);
}

TEST_F(Leave, AFailureLongBeforeIsOne) {
  begin_with(2, 3);
  pass(10s);
  says(2, RoundFailed{0, "rank 2"});
  says(3, leaves_by_sigterm());
  ends(3, {}, 2);
  ends(2, {failure(2, exited(1), 9s)}, 1);
  ends(1, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, 1) << "no restart is left";
}

TEST_F(Leave, ItsWorkersMayDieOfTheSameSignal) {
  begin_with(2, 3);
  says(3, leaves_by_sigterm());
  RoundEnded end{0, {}, 2, false};
  end.signal_number = SIGTERM;
  says(3, end);
  ends(1, {}, 2);
  ends(2, {}, 2);
  pass(2s);
  EXPECT_EQ(started.at(1).round.number, 1u);
}

TEST_F(Leave, AtOneStepWhereAllWorkersTakePart) {
  takes_stops = true;
  begin_with(2, 3);
  says(3, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u, 3u}) says(id, StopReady{0, 10 + id});
  for (const std::uint64_t id : {1u, 2u, 3u}) {
    EXPECT_EQ(stops_at.at(id).front().call, 13u);
    EXPECT_EQ(stops_at.at(id).front().signal_number, SIGTERM) << "the grace begins";
    RoundEnded end{0, {}, 0, false};
    end.stopped_at_step = 2;
    says(id, end);
  }
  EXPECT_TRUE(stopped.empty());
  pass(2s);
  EXPECT_TRUE(finished.at(3).has_left);
  EXPECT_EQ(started.at(1).round.number, 1u) << "the work is not done";
}

TEST_F(Leave, WarnedNodeLeavesAtTheAgreedStepWithoutAGrace) {
  takes_stops = true;
  begin_with(2, 3);
  says(3, leaves_by_warning());
  EXPECT_TRUE(prepared.at(1).front().is_warning);
  pass(1h);
  EXPECT_TRUE(stopped.empty()) << "until all workers take part";
  agree_after_warning({1, 2, 3});
  for (const std::uint64_t id : {1u, 2u, 3u}) EXPECT_EQ(stops_at.at(id), (std::vector{StopAt{0, 7, 0}}));
  pass(1h);
  EXPECT_TRUE(stopped.empty()) << "no grace begins";
  for (const std::uint64_t id : {1u, 2u, 3u}) stops_at_step(id);
  EXPECT_EQ(finished.at(3).exit_code, kTermed);
  EXPECT_TRUE(finished.at(3).has_left);
  EXPECT_EQ(finished.count(1), 0u);
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_EQ(started.at(1).world_size, 4);
  EXPECT_EQ(started.at(1).restart_count, 0);
  EXPECT_THAT(started.at(1).why.value(), HasSubstr("SIGUSR1 to ddprun on host h3, which leaves the job"));
  prepared.clear();
  for (const std::uint64_t id : {1u, 2u}) says(id, RoundStarted{1});
  EXPECT_TRUE(prepared.empty()) << "nobody else was warned";
}

TEST_F(Leave, SigtermToAWarnedNodeLetsItLeaveWithTheGrace) {
  takes_stops = true;
  for (const bool is_agreed : {true, false}) {
    SCOPED_TRACE(is_agreed ? "at the agreed step" : "whose workers take no part");
    stopped.clear();
    stops_at.clear();
    finished.clear();
    begin_with(2, 3);
    says(3, leaves_by_warning());
    if (is_agreed) agree_after_warning({1, 2, 3});
    says(3, leaves_by_sigterm());
    if (!is_agreed) says(2, StopReady{0, {}});
    EXPECT_EQ(stopped.size(), is_agreed ? 0u : 3u);
    if (is_agreed) {
      EXPECT_EQ(stops_at.at(1), (std::vector{StopAt{0, 7, 0}, StopAt{0, 7, SIGTERM}}));
      for (const std::uint64_t id : {1u, 2u, 3u}) stops_at_step(id);
    } else {
      for (const std::uint64_t id : {1u, 2u, 3u}) ends(id, {}, 2);
    }
    pass(2s);
    EXPECT_TRUE(finished.at(3).has_left);
    EXPECT_EQ(started.at(1).round.number, 1u);
    EXPECT_EQ(started.at(1).world_size, 4);
  }
}

TEST_F(Leave, WarnedNodeLeavesWithTheOneThatIsToldToLeave) {
  takes_stops = true;
  begin_with(1, 3);
  says(3, leaves_by_warning());
  says(2, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u, 3u}) says(id, StopReady{0, 7});
  for (const std::uint64_t id : {1u, 2u, 3u}) stops_at_step(id);
  pass(2s);
  EXPECT_TRUE(finished.at(2).has_left && finished.at(3).has_left);
  EXPECT_EQ(started.at(1).world_size, 2);
}

TEST_F(Leave, IfAllAreWarnedTheJobStopsAtTheStep) {
  takes_stops = true;
  enum class Last { before_the_step_is_agreed, before_the_round_ends, before_the_window_ends };
  for (const auto last : {Last::before_the_step_is_agreed, Last::before_the_round_ends, Last::before_the_window_ends}) {
    SCOPED_TRACE(static_cast<int>(last));
    finished.clear();
    begin_with(1, 2);
    says(2, leaves_by_warning());
    if (last == Last::before_the_step_is_agreed) says(1, leaves_by_warning());
    agree_after_warning({1, 2});
    if (last == Last::before_the_round_ends) says(1, leaves_by_warning());
    for (const std::uint64_t id : {1u, 2u}) stops_at_step(id);
    if (last == Last::before_the_window_ends) {
      EXPECT_TRUE(finished.empty());
      says(1, leaves_by_warning());
    }
    for (const std::uint64_t id : {1u, 2u}) {
      EXPECT_EQ(finished.at(id).exit_code, kStoppedAtStep);
      EXPECT_FALSE(finished.at(id).has_left);
    }
  }
}

TEST_F(Leave, WarningStopsTheJobIfTooFewWouldBeLeft) {
  takes_stops = true;
  begin_with(2, 2);
  says(2, leaves_by_warning());
  agree_after_warning({1, 2});
  for (const std::uint64_t id : {1u, 2u}) stops_at_step(id);
  for (const std::uint64_t id : {1u, 2u}) EXPECT_EQ(finished.at(id).exit_code, kStoppedAtStep);
}

TEST_F(Leave, WarningOfANodeThatDoesNotLeaveStopsTheJob) {
  takes_stops = true;
  begin_with(1, 3);
  says(3, leaves_by_warning());
  says(2, StopAsked{SIGUSR1, true});
  agree_after_warning({1, 2, 3});
  for (const std::uint64_t id : {1u, 2u, 3u}) stops_at_step(id);
  for (const std::uint64_t id : {1u, 2u, 3u}) EXPECT_EQ(finished.at(id).exit_code, kStoppedAtStep);
}

TEST_F(Leave, WorkIsDoneIfAllWorkersHadEndedBeforeTheStep) {
  takes_stops = true;
  begin_with(2, 3);
  says(3, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u, 3u}) ends(id);
  EXPECT_EQ(finished.at(1).exit_code, 0);
  EXPECT_EQ(finished.at(3).exit_code, 0);
}

TEST_F(Leave, NodesToldWithinTwoSecondsShareOneRound) {
  begin_with(1, 3);
  says(3, leaves_by_sigterm());
  pass(1s);
  says(2, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u, 3u}) ends(id, {}, 2);
  pass(1s);
  EXPECT_TRUE(finished.at(2).has_left && finished.at(3).has_left);
  EXPECT_EQ(started.at(1).world_size, 2);
  EXPECT_EQ(started.at(1).round.number, 1u);
}

TEST_F(Leave, IfAllAreToldTheJobStops) {
  begin_with(1, 2);
  says(2, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  pass(1s);
  says(1, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u}) {
    EXPECT_EQ(finished.at(id).exit_code, kTermed);
    EXPECT_FALSE(finished.at(id).has_left);
  }
  EXPECT_TRUE(membership->is_finished());
}

TEST_F(Leave, IfAllAreToldAndHaveStoppedAtOneStepTheJobEndsSo) {
  takes_stops = true;
  begin_with(1, 2);
  says(2, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u}) says(id, StopReady{0, 5});
  for (const std::uint64_t id : {1u, 2u}) {
    RoundEnded end{0, {}, 0, false};
    end.stopped_at_step = 2;
    says(id, end);
  }
  says(1, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u}) EXPECT_EQ(finished.at(id).exit_code, kStoppedAtStep);
}

TEST_F(Leave, WithTooFewLeftTheJobStops) {
  begin_with(2, 2, 5);
  says(2, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  for (const std::uint64_t id : {1u, 2u}) {
    EXPECT_EQ(finished.at(id).exit_code, kTermed);
    EXPECT_FALSE(finished.at(id).has_left);
  }
}

TEST_F(Leave, ASpareTakesTheLeaversPlace) {
  begin_with(2, 2);
  join(3, "spare");
  says(2, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  pass(2s);
  EXPECT_TRUE(finished.at(2).has_left);
  EXPECT_EQ(group_ranks({1, 3}), (std::vector<int>{0, 1}));
}

TEST_F(Leave, AStopSignalOfAnotherKindStopsTheJob) {
  begin_with(1, 2);
  says(2, StopAsked{SIGINT});
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, 128 + SIGINT);
}

TEST_F(Leave, BetweenTwoRoundsItGoesAtTheWindowsEnd) {
  begin_with(1, 3, 1);
  ends(3, {failure(4, exited(1))}, 1);
  for (const std::uint64_t id : {1u, 2u}) {
    stores_open = false;
    ends(id, {}, 2);
  }
  says(2, leaves_by_sigterm());  // while the store is being opened
  pass(2s);
  EXPECT_TRUE(finished.at(2).has_left);
  stores_open = true;
  says(1, StoreOpened{opened.back().second.round.number, 4000});
  EXPECT_EQ(started.at(1).world_size, 4);
  EXPECT_EQ(started.count(3), 1u);
}

// The first round is held up for nodes that may still have one.
TEST_F(Leave, WindowThatOutlastsTheWaitForNodesIsWaitedFor) {
  more_options.heartbeat_timeout = 40s;
  hello.was_welcomed = true;
  begin(1, 3);
  for (const std::uint64_t id : {1u, 2u}) join(id, "h" + std::to_string(id), {}, id == 1);
  pass(59s);
  says(2, leaves_by_sigterm());
  now += 1s;
  hear(membership->tick(now));
  ASSERT_EQ(membership->next_deadline(), now + 1s) << "and no storm of ticks until then";
  pass(1s);
  EXPECT_TRUE(finished.at(2).has_left);
  EXPECT_EQ(started.count(1), 1u);
}

TEST_F(Leave, AHostThatLeavesTellsTheOthersAndEnds) {
  hello.standby_port = 7000;
  begin(1, 3);
  hello.standby_port = 7000;
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  says(1, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u, 3u}) ends(id, {}, 2);
  EXPECT_FALSE(membership->is_finished());
  pass(1999ms);
  now += 1ms;
  std::vector<std::uint64_t> told;
  for (const auto& action : membership->tick(now))
    if (const auto* send = std::get_if<Send>(&action)) {
      if (std::holds_alternative<HostLeaves>(send->message)) told.push_back(static_cast<std::uint64_t>(send->to));
      if (const auto* verdict = std::get_if<FinishJob>(&send->message)) {
        EXPECT_EQ(send->to, node(1));
        EXPECT_TRUE(verdict->has_left);
      }
    }
  EXPECT_THAT(told, ElementsAre(2u, 3u));
  EXPECT_TRUE(membership->is_finished());
  EXPECT_FALSE(membership->verdict()) << "the job goes on";
}

TEST_F(Leave, AHostThatLeavesNamesThoseThatLeaveWithIt) {
  hello.standby_port = 7000;
  begin(1, 3);
  hello.standby_port = 7000;
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  for (const std::uint64_t id : {3u, 1u}) says(id, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u, 3u}) ends(id, {}, 2);
  pass(1999ms);
  now += 1ms;
  std::vector<int> gone;
  for (const auto& action : membership->tick(now))
    if (const auto* send = std::get_if<Send>(&action); send != nullptr && send->to == node(2))
      gone = std::get<HostLeaves>(send->message).gone;
  EXPECT_THAT(gone, ElementsAre(2));
}

TEST_F(Leave, WhereNobodyIsLeftToServeNextTheJobStops) {
  hello.standby_port = 7000;
  begin(1, 5);
  for (const std::uint64_t id : {1u, 2u, 3u, 4u, 5u}) {
    hello.standby_port = 7000;
    join(id, "h" + std::to_string(id), {}, id == 1);
  }
  says(1, leaves_by_sigterm());
  for (const std::uint64_t id : {2u, 3u, 4u}) says(id, leaves_by_sigterm());  // all that were told to be next
  for (const std::uint64_t id : {1u, 2u, 3u, 4u, 5u}) ends(id, {}, 2);
  pass(2s);
  EXPECT_EQ(finished.at(5).exit_code, kTermed);
  EXPECT_FALSE(finished.at(5).has_left);
}

TEST_F(Leave, AHostLeavesNodesThatWaitForTheFirstRound) {
  begin(2, 4);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  finished.clear();
  says(1, leaves_by_sigterm());
  pass(2s);
  EXPECT_TRUE(finished.at(1).has_left);
  EXPECT_EQ(finished.size(), 1u) << "the others wait for whoever comes to the endpoint";
  EXPECT_TRUE(membership->is_finished());
}

TEST_F(Leave, AHostThatIsNoMemberLeavesTheRoundToTheOthers) {
  begin(1, 3, 9);
  hello.standby_port = 7000;
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id), {}, id == 1);
  auto its = failure(0, exited(1));
  its.host = "h1";
  for (int i = 0; i < 3; ++i) {
    ends(1, {its}, 1);
    for (const std::uint64_t id : {2u, 3u}) ends(id, {}, 2);
  }
  ASSERT_EQ(started.at(1).round.number, 2u) << "its host is left out of the next round";
  ASSERT_EQ(started.at(2).round.number, 3u);
  std::vector<std::uint64_t> told;
  for (const auto& action : membership->step(Heard{node(1), leaves_by_sigterm()}, now)) {
    if (const auto* send = std::get_if<Send>(&action)) {
      EXPECT_FALSE(std::holds_alternative<StopRound>(send->message)) << "the round goes on as it is";
      if (std::holds_alternative<HostLeaves>(send->message)) told.push_back(static_cast<std::uint64_t>(send->to));
      const auto* verdict = std::get_if<FinishJob>(&send->message);
      EXPECT_TRUE(verdict == nullptr || verdict->has_left);
    }
  }
  EXPECT_THAT(told, ElementsAre(2u, 3u));
  EXPECT_TRUE(membership->is_finished());
  EXPECT_FALSE(membership->verdict());
}

TEST_F(Leave, AHostThatIsNoMemberAndNobodyCanSucceedStopsTheJob) {
  begin(1, 2);
  join(2, "h2", 0);
  join(3, "h3", 1);
  join(1, "h1", {}, true);  // a spare
  ASSERT_EQ(started.count(1), 0u);
  says(1, leaves_by_sigterm());
  for (const std::uint64_t id : {2u, 3u}) ends(id, {}, 2);
  EXPECT_EQ(finished.at(2).exit_code, kTermed);
  EXPECT_FALSE(finished.at(2).has_left);
}

TEST_F(Leave, AnotherSignalOfALeaverStopsTheJob) {
  begin_with(1, 2);
  says(2, leaves_by_sigterm());
  says(2, leaves_by_sigterm());
  says(2, StopAsked{SIGINT});
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  EXPECT_EQ(finished.at(1).exit_code, 128 + SIGINT);
}

TEST_F(Leave, OfNodesThatDoNotLeaveTheFirstToEndIsNotOutOfTouch) {
  takes_stops = true;
  begin_with(1, 2);
  says(2, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u}) says(id, StopReady{0, 5});
  ends(1, {}, 2);  // its grace was over
  ends(2, {}, 2);
  pass(2s);
  EXPECT_EQ(started.at(1).round.number, 1u);
  EXPECT_THAT(started.at(1).why.value(), HasSubstr("which leaves the job"));
}

TEST_F(Leave, AHostThatEndsForWantOfItsGuardianTellsTheOthers) {
  begin_with(2, 3);
  std::vector<std::uint64_t> told;
  for (const auto& action : membership->step(Heard{node(1), Leaving{"its guardian process ended", 137}}, now))
    if (const auto* send = std::get_if<Send>(&action)) {
      EXPECT_EQ(std::get<HostLeaves>(send->message), (HostLeaves{"its guardian process ended", {}, 137}));
      told.push_back(static_cast<std::uint64_t>(send->to));
    }
  EXPECT_THAT(told, ElementsAre(2u, 3u));
  EXPECT_TRUE(membership->is_finished());
  EXPECT_FALSE(membership->verdict()) << "the job goes on";
}

TEST_F(Leave, AHostThatNobodyCanSucceedStopsTheJob) {
  begin_with(1, 2);
  says(1, leaves_by_sigterm());
  for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  EXPECT_EQ(finished.at(2).exit_code, kTermed);
}

// --- at the next host ---

TEST_F(Leave, TheNextHostGoesOnAtNoCostAfterOneThatHasLeft) {
  begin_with(1, 2);
  next_host_begins(1, 2, {0, "key-1", true, true});
  EXPECT_THAT(stopped.at(0).front().why.value(), HasSubstr("has left the job"));
  RoundEnded end{0, {failure(2, exited(1), 5s)}, 1, false};
  says(0, end);
  EXPECT_EQ(started.at(0).round.number, 1u);
  EXPECT_EQ(started.at(0).world_size, 2);
  EXPECT_EQ(started.at(0).restart_count, 0);
}

TEST_F(Leave, TheNextHostGoesOnWithoutThoseThatLeftWithTheHost) {
  begin_with(1, 3);
  LostHost lost{0, "key-1", true, true, started.at(2).round, {2}};
  if (started.at(2).group_rank == 2) lost.others_gone = {1};
  next_host_begins(1, 3, lost);
  ASSERT_EQ(stopped.count(0), 1u) << "nobody is awaited";
  says(0, RoundEnded{0, {}, 2, false});
  EXPECT_EQ(started.at(0).round.number, 1u);
  EXPECT_EQ(started.at(0).restart_count, 0);
}

TEST_F(Leave, WorkIsNotDoneIfTheHostHasLeftInTheMiddleOfIt) {
  begin_with(1, 2);
  next_host_begins(1, 2, {0, "key-1", true, true});
  says(0, RoundEnded{0, {}, 0, false});  // workers here had come to their end
  EXPECT_EQ(started.at(0).round.number, 1u);
}

TEST_F(Leave, WorkersThatStoppedAtAStepForIt_AreStartedAgain) {
  begin_with(1, 2);
  next_host_begins(1, 2, {0, "key-1", true, true});
  RoundEnded end{0, {}, 0, false};
  end.stopped_at_step = 2;
  says(0, end);
  EXPECT_EQ(started.at(0).round.number, 1u);
}

TEST_F(Leave, OfTwoNodesTheSecondGoesOnOnceTheGuardianOfTheFirstHasSpoken) {
  begin_with(1, 2);
  next_host_begins(1, 2, {0, "key-1"});
  pass(999ms);
  EXPECT_FALSE(stepped_down);
  EXPECT_TRUE(stopped.empty()) << "nobody knows yet";
  EXPECT_TRUE(membership->knows("key-1"));
  hear(membership->step(NodeEnded{"key-1"}, now));
  EXPECT_THAT(stopped.at(0).front().why.value(), HasSubstr("node 0, which had the endpoint, was lost"));
  says(0, RoundEnded{0, {}, 2, false});
  EXPECT_EQ(started.at(0).round.number, 1u);
  EXPECT_EQ(started.at(0).restart_count, 0);
}

TEST_F(Leave, OfTwoNodesTheSecondStepsDownIfTheGuardianOfTheFirstSaysNothing) {
  begin_with(1, 2);
  next_host_begins(1, 2, {0, "key-1"});
  says(0, RoundEnded{0, {failure(2, exited(1))}, 1, false});
  EXPECT_EQ(started.count(0), 0u);
  pass(1s);
  EXPECT_TRUE(stepped_down);
}

TEST_F(Leave, NoStepIsAgreedOnWhileTheGuardianIsAwaited) {
  begin_with(1, 2);
  next_host_begins(1, 2, {0, "key-1"});
  says(0, StopAsked{SIGUSR1, true});
  EXPECT_TRUE(prepared.empty()) << "the others may be agreeing on another one";
}

TEST_F(Leave, TheGuardiansWordMayComeBeforeTheNextHostBegins) {
  begin_with(1, 2);
  next_host_begins(1, 2, {0, "key-1", true});
  EXPECT_EQ(stopped.at(0).size(), 1u);
  says(0, RoundEnded{0, {}, 2, false});
  EXPECT_EQ(started.at(0).round.number, 1u);
}

TEST_F(Leave, AJobOfWhichNobodyCanGoOnEndsWhenItIsKnown) {
  begin_with(2, 2);
  next_host_begins(2, 2, {0, "key-1"});
  EXPECT_FALSE(stepped_down);
  pass(1s);
  EXPECT_FALSE(stepped_down) << "nothing is left to look for: no restart, and of the two nodes one is here";
  says(0, RoundEnded{0, {}, 2, false});
  EXPECT_EQ(finished.at(0).exit_code, kRendezvousFailed);
  EXPECT_THAT(finished.at(0).what.value(), HasSubstr("node 0, which had the endpoint, was lost"));
}

TEST_F(Leave, TheLastErrorHasTheReasonAndTheCodeOfTheLostHost) {
  begin_with(2, 2);
  LostHost lost{0, "key-1", true};
  lost.why = "its guardian process was killed by SIGKILL";
  lost.exit_code = 137;
  next_host_begins(2, 2, lost);
  says(0, RoundEnded{0, {}, 2, false});
  EXPECT_EQ(finished.at(0).exit_code, 137);
  EXPECT_EQ(finished.at(0).what,
            "node 0, which had the endpoint, was lost: its guardian process was killed by SIGKILL");
}

TEST_F(Leave, TheLastErrorSaysHowTheLostHostEndedAlsoIfItsGuardianSpeaksLater) {
  const struct {
    int signal_number;
    int exit_code;
    const char* why;
  } cases[] = {{SIGKILL, 137, "its ddprun was killed by SIGKILL"}, {0, kRendezvousFailed, "its ddprun ended"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.why);
    begin_with(2, 2);
    next_host_begins(2, 2, {0, "key-1"});
    hear(membership->step(NodeEnded{"key-1", c.signal_number}, now));
    says(0, RoundEnded{0, {}, 2, false});
    EXPECT_EQ(finished.at(0).exit_code, c.exit_code);
    EXPECT_EQ(finished.at(0).what, std::string("node 0, which had the endpoint, was lost: ") + c.why);
    finished.clear();
  }
}

TEST_F(Leave, AGuardianDoesNotChangeWhatItsHostSaidOfItsEnd) {
  begin_with(2, 2);
  LostHost lost{0, "key-1", true};
  lost.why = "its guardian process was killed by SIGTERM";
  lost.exit_code = 143;
  next_host_begins(2, 2, lost);
  hear(membership->step(NodeEnded{"key-1", SIGKILL}, now));
  says(0, RoundEnded{0, {}, 2, false});
  EXPECT_EQ(finished.at(0).exit_code, 143);
}

TEST_F(Leave, WithARestartLeftTheLastOneLooksForTheOthers) {
  begin_with(2, 2, 1);
  more_options.heartbeat_timeout = 3s;
  auto held = held_by(2);
  held.is_established = true;
  more_options.lost = {0, "key-1"};
  begin(2, 2, 1);
  comes_again(2, 0, held);
  pass(1s);
  EXPECT_TRUE(stepped_down);
}

TEST_F(Leave, ADaemonThatHadForgottenItsOwnRoundNeedsNoGreaterPartOfIt) {
  for (const bool was_its_own : {true, false}) {
    SCOPED_TRACE(was_its_own);
    more_options.before = {};
    greater_part_only = true;
    started.clear();
    stopped.clear();
    nonces_of.clear();
    stepped_down.reset();
    begin_with(1, 3);
    auto held = held_by(2);
    held.is_established = true;
    greater_part_only = false;
    if (was_its_own) more_options.before.last_round = held.round;
    begin(1, 3);
    comes_again(2, 12, held);
    pass(20s);
    says(12, RoundEnded{0, {}, 2, false});
    pass(20s);
    EXPECT_EQ(started.count(12), was_its_own ? 1u : 0u);
  }
}

// --- a fixed number of nodes, and spares ---

TEST_F(Leave, OfTwoSidesWithEnoughNodesEachTheOneThatHasTheEndpointGoesOn) {
  for (const bool is_endpoint_here : {true, false}) {
    SCOPED_TRACE(is_endpoint_here);
    more_options.holds_endpoint = is_endpoint_here;
    begin(2, 2, 3);
    started.clear();
    for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id));
    for (const std::uint64_t id : {1u, 2u}) says(id, RoundStarted{0});
    falls_silent(1);  // which has the lowest group rank
    ends(2, {}, 2);
    if (is_endpoint_here)
      EXPECT_EQ(started.at(2).round.number, 1u);
    else
      EXPECT_TRUE(stepped_down);
    pass(1s);
  }
}

// --- nodes that were lost all at once come again ---

TEST_F(Leave, NodesThatComeAgainBeforeAnotherRoundBeginsKeepWorkersThatCanTakeASeat) {
  greater_part_only = false;
  begin_with(3, 5, 1);
  Held held[] = {held_by(1), held_by(2), held_by(3), held_by(4), held_by(5)};
  for (const std::uint64_t id : {1u, 2u, 3u, 4u, 5u}) falls_silent(id);
  for (const std::uint64_t id : {1u, 2u, 3u}) {
    comes_again(id, 10 + id, held[id - 1]);
    ASSERT_EQ(stopped.count(10 + id), 1u);
    EXPECT_TRUE(stopped.at(10 + id).back().reseat && stopped.at(10 + id).back().is_left_behind);
    says(10 + id, RoundEnded{0, {}, 2, false});
  }
  EXPECT_EQ(started.count(11), 0u) << "the others may be about to come";
  comes_again(4, 14, held[3]);
  says(14, RoundEnded{0, {}, 2, false});
  pass(1s);
  EXPECT_EQ(started.at(11).round.number, 1u);
  EXPECT_EQ(started.at(11).group_world_size, 4);
}

TEST_F(Leave, OnceAllHaveComeAgainTheNextRoundBegins) {
  greater_part_only = false;
  begin_with(2, 3, 1);
  Held held[] = {held_by(1), held_by(2), held_by(3)};
  for (const std::uint64_t id : {1u, 2u, 3u}) falls_silent(id);
  for (const std::uint64_t id : {1u, 2u, 3u}) {
    comes_again(id, 10 + id, held[id - 1]);
    says(10 + id, RoundEnded{0, {}, 2, false});
  }
  EXPECT_EQ(started.at(11).group_world_size, 3);
}

}  // namespace
}  // namespace ddp::rendezvous
