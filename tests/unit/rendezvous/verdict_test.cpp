#include "rendezvous/membership/verdict.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <string>

#include "ended_round.hpp"

namespace ddp::rendezvous {
namespace {

using ::testing::HasSubstr;

TEST(Verdict, FollowsFromTheRoundAndTheStop) {
  CurrentRound done, failed, survived, stopped, at_step;
  failed.failures = {failed_at(1s), failed_at(2s)};
  survived.tree_survived = true;
  stopped.stopped = 2;
  at_step.stopped_at_step = 4;
  const auto lost = with_loss({}, 1s);
  const std::optional<JobStop> none;
  const std::optional<JobStop> told{{JobStop::Source::ddprun, SIGTERM, "a"}};
  const std::optional<JobStop> by_deaths{{JobStop::Source::workers, SIGINT, "a"}};
  std::optional<JobStop> by_time = told;
  by_time->time_limit = 60s;
  const struct {
    const char* what;
    const CurrentRound& round;
    const std::optional<JobStop>& stop;
    bool is_another_due;
    int exit_code;
    std::optional<std::string> says;
    bool is_error;
  } cases[] = {
      {"all ended well", done, none, false, 0, {}, false},
      {"a worker failed", failed, none, false, 3, {}, false},
      {"a worker failed, and another round is due", failed, none, true, kNoProgress, "3 rounds in a row", false},
      {"a node was lost", lost, none, false, kRendezvousFailed, "node 1 (host b)", true},
      {"a process can't be killed", survived, none, false, 1, "could not be killed", true},
      {"workers were stopped", stopped, none, false, 1, "no node has named one", true},
      {"stopped at one step", at_step, told, false, kStoppedAtStep, "4 workers stopped at one step", false},
      {"told to stop", stopped, told, false, 143, {}, false},
      {"told to stop by deaths", stopped, by_deaths, false, 130, "SIGINT to the processes of host a", false},
      {"its time is over", stopped, by_time, false, kTimeIsOver, "the time limit of 60 s on host a", true},
      {"its time is over, and a node was lost", lost, by_time, false, kTimeIsOver, "time limit", true},
      {"its time is over, and it stopped at one step", at_step, by_time, false, kStoppedAtStep, "one step", false},
      {"its time is over after the last restart", failed, by_time, false, 3, {}, false},
      {"told to stop, and would go on", failed, told, true, 143, {}, false},
      {"told to stop after the last restart", failed, told, false, 3, {}, false},
      {"told to stop, and a node was lost", lost, told, false, 143, "node 1 (host b)", false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const auto verdict = verdict_of_round({c.round, c.stop, c.is_another_due, 8, 2});
    EXPECT_EQ(verdict.exit_code, c.exit_code);
    EXPECT_EQ(verdict.what.has_value(), c.says.has_value());
    EXPECT_THAT(verdict.what.value_or(""), HasSubstr(c.says.value_or("")));
    EXPECT_EQ(verdict.try_this.has_value(), c.is_error);
    EXPECT_EQ(verdict.world_size, 8);
    EXPECT_EQ(verdict.restarts_max, 2);
  }
}

TEST(Verdict, TooFewNodesAreNamedWithTheReasonForTheWait) {
  MembershipOptions options;
  options.nodes_min = 3;
  options.join_timeout = 60s;
  const auto first = verdict_of_wait(options, 2, "a, b", {});
  EXPECT_EQ(first.exit_code, kRendezvousFailed);
  EXPECT_EQ(first.what, "only 2 of 3 nodes came within 60 s: a, b");
  EXPECT_TRUE(first.try_this);
  EXPECT_EQ(verdict_of_wait(options, 2, "a, b", "node 2 was lost").what,
            "node 2 was lost; after that only 2 of 3 nodes came within 60 s: a, b");
}

TEST(Verdict, StopBetweenRoundsEndsTheJobAsItsSignalDoes) {
  const auto verdict = verdict_of_stop({JobStop::Source::ddprun, SIGINT, "a"}, 2);
  EXPECT_EQ(verdict.exit_code, 130);
  EXPECT_EQ(verdict.restarts_max, 2);
}

TEST(Verdict, TimeLimitBetweenRoundsIsAnError) {
  JobStop stop{JobStop::Source::ddprun, SIGTERM, "a"};
  stop.time_limit = 90s;
  const auto verdict = verdict_of_stop(stop, 2);
  EXPECT_EQ(verdict.exit_code, 124);
  EXPECT_EQ(verdict.what, "stopped by the time limit of 90 s on host a (--timeout)");
  EXPECT_TRUE(verdict.try_this);
}

}  // namespace
}  // namespace ddp::rendezvous
