#include "rendezvous/membership/limits.hpp"

#include "membership_job.hpp"

namespace ddp::rendezvous {
namespace {

TEST(RestartBudget, CountsWhatWasSpentBeforeAsOfNow) {
  TimePoint now{1h};
  RestartBudget budget(3, 60s);
  budget.restate(2, {}, now);
  budget.restate(1, {}, now);
  EXPECT_EQ(budget.count(), 2);
  EXPECT_TRUE(budget.is_left(now));
  budget.spend(now);
  EXPECT_EQ(budget.count(), 3);
  EXPECT_FALSE(budget.is_left(now + 59s));
  EXPECT_TRUE(budget.is_left(now + 60s));
  RestartBudget forever(1, 0s);
  forever.restate(1'000'000'000, {}, now);
  EXPECT_FALSE(forever.is_left(now + 24h));
}

TEST(RestartBudget, TakesTheAgesOfTheGreatestCount) {
  TimePoint now{1h};
  RestartBudget before(3, 60s);
  for (const auto when : {0s, 30s, 80s, 100s}) before.spend(now + when);
  now += 110s;
  const auto spent = before.spent(now);
  EXPECT_EQ(spent, (std::vector<SpentRestarts>{{30s, 1}, {10s, 1}})) << "the window counts no more";

  RestartBudget after(3, 60s);
  after.restate(2, {}, now);
  after.restate(4, spent, now);
  after.restate(3, {}, now);
  EXPECT_EQ(after.count(), 4);
  EXPECT_EQ(after.spent(now), spent);
  EXPECT_TRUE(after.is_left(now));
  after.spend(now);
  EXPECT_FALSE(after.is_left(now + 29s));
  EXPECT_TRUE(after.is_left(now + 30s));
}

TEST(RestartBudget, KeepsABoundedListThatForgetsNoRestart) {
  const TimePoint now{1h};
  constexpr int kMany = 200;
  RestartBudget budget(kMany, 60s);
  for (int i = 0; i < kMany; ++i) budget.spend(now + i * 1ms);
  const auto spent = budget.spent(now + 1s);
  ASSERT_TRUE(spent);
  EXPECT_EQ(spent->size(), kSpentRestartsMax);
  EXPECT_FALSE(budget.is_left(now + 1s));
  EXPECT_TRUE(budget.is_left(now + 61s));
}

TEST(RestartBudget, LimitsThatBecomeKnownLaterCountWhatWasSpentBefore) {
  const TimePoint now{1h};
  RestartBudget budget(0, 0s);
  budget.restate(2, {{{50s, 2}}}, now);
  budget.set_limits(2, 60s);
  EXPECT_FALSE(budget.is_left(now + 9s));
  EXPECT_TRUE(budget.is_left(now + 10s));
}

TEST(RestartPause, DoublesUpToTenSecondsAndEndsWithARoundThatWorked) {
  RestartPause pause;
  EXPECT_EQ(pause.length(), 0ms);
  using AtOnce = RestartPause::AtOnce;
  for (const auto length : {100ms, 200ms, 400ms, 800ms, 1600ms, 3200ms, 6400ms, 10000ms, 10000ms}) {
    pause.end_round(AtOnce::worker_failed);
    EXPECT_EQ(pause.length(), length);
  }
  for (int i = 0; i < 1'000; ++i) pause.end_round(AtOnce::worker_failed);
  EXPECT_EQ(pause.length(), 10s);
  pause.end_round(AtOnce::no);
  EXPECT_EQ(pause.length(), 0ms);
}

TEST(RestartPause, FirstLossOfANodeHasNone) {
  RestartPause pause;
  using AtOnce = RestartPause::AtOnce;
  for (const auto length : {0ms, 100ms, 200ms}) {
    pause.end_round(AtOnce::node_lost);
    EXPECT_EQ(pause.length(), length);
  }
  pause.end_round(AtOnce::no);
  pause.end_round(AtOnce::worker_failed);
  pause.end_round(AtOnce::node_lost);
  EXPECT_EQ(pause.length(), 100ms) << "as before the loss";
}

TEST(CoolDown, LetsAHostThatWasLeftOutForALinkInBeforeItsTimeOnceInTenMinutes) {
  const TimePoint now{1h};
  CoolDown cool_down;
  cool_down.let_in("a", now);
  EXPECT_TRUE(cool_down.leave_out_for_link("a", now));
  EXPECT_TRUE(cool_down.is_out("a", now + 1s));
  cool_down.let_in("a", now + 1s);
  EXPECT_FALSE(cool_down.is_out("a", now + 1s));
  EXPECT_FALSE(cool_down.leave_out_for_link("a", now + 2min));
  cool_down.let_in("a", now + 3min);
  EXPECT_TRUE(cool_down.is_out("a", now + 6min));
  EXPECT_FALSE(cool_down.is_out("a", now + 8min));
  EXPECT_TRUE(cool_down.leave_out_for_link("a", now + 11min));
  cool_down.leave_out("b", now);
  cool_down.let_in("b", now + 1s);
  EXPECT_TRUE(cool_down.is_out("b", now + 1s)) << "not for a link";
}

TEST(CoolDown, LeavesAHostOutThatEndsThreeRoundsInTenMinutes) {
  TimePoint now{1h};
  CoolDown cool_down;
  cool_down.blame("a", now);
  cool_down.blame("b", now + 9min);
  cool_down.blame("a", now + 9min);
  cool_down.blame("a", now + 10min);
  EXPECT_FALSE(cool_down.is_out("a", now + 10min)) << "the first was too long ago";
  EXPECT_FALSE(cool_down.is_anyone_out(now + 10min));
  cool_down.blame("a", now + 11min);
  EXPECT_EQ(cool_down.out_until("a", now + 11min), now + 16min);
  EXPECT_FALSE(cool_down.is_out("b", now + 11min));
  EXPECT_TRUE(cool_down.is_anyone_out(now + 11min));
  EXPECT_FALSE(cool_down.is_out("a", now + 16min));
}

TEST(CoolDown, RemembersTwoBlamesAfterTheHostIsBack) {
  TimePoint now{1h};
  for (const bool is_soon : {true, false}) {
    CoolDown cool_down;
    for (int i = 0; i < 3; ++i) cool_down.blame("a", now + i * 1min);
    ASSERT_FALSE(cool_down.is_out("a", now + 7min));
    const auto next = now + (is_soon ? 7min : 11min);
    cool_down.blame("a", next);
    EXPECT_EQ(cool_down.is_out("a", next), is_soon) << "those of 1 min and 2 min count for 10 min";
  }
}

TEST_F(Job, TheReasonThatOneNodeHasPrintedWithThePauseIsNewToTheOthers) {
  begin(2, 2, 5);
  join(1, "a", {}, true);
  join(2, "b");
  auto at_once = failure(0, exited(1));
  at_once.after = 20ms;
  ends(1, {at_once}, 1);
  ends(2, {}, 2);
  pass(100ms);
  ASSERT_EQ(started.at(2).restart_count, 1);
  EXPECT_TRUE(started.at(1).is_why_told);
  EXPECT_FALSE(started.at(2).is_why_told);
}

TEST_F(Job, RoundsThatFailAtOnceWaitLongerAndLonger) {
  begin(1, 1, 20);
  join(1, "a", {}, true);
  auto at_once = failure(0, exited(1));
  at_once.after = 20ms;
  ends(1, {at_once});
  EXPECT_EQ(started.at(1).restart_count, 0);
  EXPECT_EQ(said.back(),
            "rank 0 ended with exit code 1 after 20 ms: restart 1 of 20 begins in 100 ms, because the last round ended "
            "within 10 s of the start, before a first step");
  pass(99ms);
  EXPECT_EQ(started.at(1).restart_count, 0);
  pass(1ms);
  EXPECT_EQ(started.at(1).restart_count, 1);
  EXPECT_TRUE(started.at(1).is_why_told);
  ends(1, {at_once});
  pass(199ms);
  EXPECT_EQ(started.at(1).restart_count, 1);
  pass(1ms);
  EXPECT_EQ(started.at(1).restart_count, 2);
  says(1, FirstStep{started.at(1).round.number});
  ends(1, {at_once});
  EXPECT_EQ(started.at(1).restart_count, 3) << "it had come further";
}

TEST_F(Job, AStopEndsAPause) {
  begin(1, 1, 20);
  join(1, "a", {}, true);
  auto at_once = failure(0, exited(1));
  at_once.after = 20ms;
  ends(1, {at_once});
  says(1, StopAsked{SIGTERM});
  ASSERT_EQ(finished.count(1), 1u);
  EXPECT_EQ(finished.at(1).exit_code, 143);
}

TEST_F(Job, AHostThatEndsRoundAfterRoundIsLeftOutForAWhile) {
  begin(1, 2, 9);
  join(1, "a", {}, true);
  join(2, "b");
  auto its = failure(2, exited(1));
  its.host = "b";
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(started.at(2).round.number, static_cast<std::uint32_t>(i));
    ends(2, {its}, 1);
    ends(1, {}, 2);
  }
  EXPECT_THAT(said.back(), AllOf(HasSubstr("host b"), HasSubstr("left out for 5 min")));
  EXPECT_EQ(started.at(1).round.number, 3u);
  EXPECT_EQ(started.at(1).group_world_size, 1);
  EXPECT_EQ(started.at(2).round.number, 2u);
  pass(299s);
  EXPECT_EQ(stopped.at(1).size(), 3u);
  pass(1s);
  pass(10s);
  ASSERT_EQ(stopped.at(1).size(), 4u) << "its time is over";
  ends(1, {}, 2);
  EXPECT_EQ(started.at(2).round.number, 4u);
}

TEST_F(Job, ANodeCannotBlameAnotherHost) {
  begin(1, 2, 9);
  join(1, "a", {}, true);
  join(2, "b");
  auto its = failure(2, exited(1));
  its.host = "a";
  for (int i = 0; i < 3; ++i) {
    ends(2, {its}, 1);
    ends(1, {}, 2);
  }
  EXPECT_THAT(said.back(), AllOf(HasSubstr("host b"), HasSubstr("left out for 5 min")));
}

TEST_F(Job, ANodeCannotBlameARankOfAnotherNode) {
  begin(2, 2);
  join(1, "a", {}, true);
  join(2, "b");
  auto its = failure(0, exited(1));  // ranks 2 and 3 are its own
  its.local_rank = 7;
  ends(2, {its}, 1);
  EXPECT_THAT(stopped.at(1).back().why.value(), HasSubstr("rank 3 ended with exit code 1"));
  ends(1, {}, 2);
  EXPECT_EQ(finished.at(1).cause->rank, 3);
  EXPECT_EQ(finished.at(1).cause->local_rank, 1);
  EXPECT_EQ(finished.at(1).cause->host, "b");
}

TEST_F(Job, ANodeCannotBlameARankOfAnotherNodeInARoundThatAnotherMembershipBegan) {
  begin(3, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) join(id, "h" + std::to_string(id));
  std::map<std::uint64_t, Held> held;
  for (const std::uint64_t id : {1u, 2u, 3u}) held[id] = held_by(id);
  const auto round = held.at(3).round.number;
  begin(3, 3);
  for (const std::uint64_t id : {1u, 2u, 3u}) comes_again(id, id, held.at(id));
  says(3, RoundEnded{round, {failure(1, exited(1))}, 1, false});  // ranks 4 and 5 are its own
  EXPECT_THAT(stopped.at(1).back().why.value(), HasSubstr("rank 4 ended with exit code 1"));
}

TEST_F(Job, ANodeWithTheNameOfAnotherHostIsLeftOutAlone) {
  begin(1, 3, 9);
  join(1, "a", {}, true);
  join(2, "b");
  join(3, "b");  // at another address
  for (int i = 0; i < 3; ++i) {
    ends(3, {failure(4, exited(1))}, 1);
    for (const std::uint64_t id : {1u, 2u}) ends(id, {}, 2);
  }
  for (const std::uint64_t id : {1u, 2u}) EXPECT_EQ(started.at(id).round.number, 3u);
  EXPECT_EQ(started.at(3).round.number, 2u);
}

TEST_F(Job, NoHostIsLeftOutWhereTheOthersWouldBeTooFew) {
  begin(2, 2, 9);
  join(1, "a", {}, true);
  join(2, "b");
  auto its = failure(2, exited(1));
  its.host = "b";
  for (int i = 0; i < 4; ++i) {
    ends(2, {its}, 1);
    ends(1, {}, 2);
  }
  EXPECT_EQ(started.at(2).round.number, 4u);
  join(3, "c");
  ends(2, {its}, 1);
  ends(1, {}, 2);
  EXPECT_EQ(group_ranks({1, 3}), (std::vector<int>{0, 1})) << "now there is another";
  EXPECT_EQ(started.at(2).round.number, 4u);
}

}  // namespace
}  // namespace ddp::rendezvous
