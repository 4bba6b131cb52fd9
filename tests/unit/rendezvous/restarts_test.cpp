#include "rendezvous/membership/restarts.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <optional>

#include "ended_round.hpp"

namespace ddp::rendezvous {
namespace {

// A job with one restart.
class RestartsOfAJob : public ::testing::Test {
 protected:
  RestartsOfAJob() {
    failed.failures = {failed_at(1s)};
    lost.stopped = 1;
    lost = with_loss(lost, 1s);
  }

  Restarts restarts{1, 0ms};
  CurrentRound failed, lost;
  TimePoint now{1h};
};

TEST_F(RestartsOfAJob, FailureCostsARestart) {
  EXPECT_TRUE(restarts.may_follow(failed, true, now));
  EXPECT_TRUE(restarts.end({failed, true, false}, now));
  EXPECT_EQ(restarts.count(), 0) << "nothing follows yet";
  restarts.go_on({failed, true, false}, now);
  EXPECT_EQ(restarts.count(), 1);
  EXPECT_EQ(restarts.reason(), "rank 0 ended with exit code 3 after 0 ms");
  EXPECT_FALSE(restarts.may_follow(failed, true, now));
  EXPECT_FALSE(restarts.end({failed, true, false}, now));
}

TEST_F(RestartsOfAJob, ChangeOfMembersCostsNone) {
  restarts.restate(1, {}, now);
  EXPECT_TRUE(restarts.may_follow(lost, true, now));
  EXPECT_FALSE(restarts.may_follow(lost, false, now)) << "too few nodes are left, and no restart to wait for another";
  EXPECT_TRUE(restarts.end({lost, true, true}, now));
  restarts.go_on({lost, true, true}, now);
  EXPECT_EQ(restarts.count(), 1);
}

TEST_F(RestartsOfAJob, DoneRoundIsFollowedByNoOther) { EXPECT_FALSE(restarts.end({{}, true, false}, now)); }

TEST_F(RestartsOfAJob, NoRoundFollowsIfTheProgramCannotStartOrAProcessSurvives) {
  auto survived = lost, hopeless = lost;
  survived.tree_survived = true;
  hopeless.failures = {failed_at(1s, {Ending::Kind::not_started, ENOENT, false})};
  for (const auto& round : {survived, hopeless}) {
    EXPECT_FALSE(restarts.may_follow(round, true, now));
    EXPECT_FALSE(restarts.end({round, true, true}, now));
  }
}

TEST_F(RestartsOfAJob, RoundThatDidNotBeginAddsToTheReasonOfTheOneBefore) {
  restarts.go_on({failed, true, false}, now);
  restarts.go_on({lost, false, true}, now);
  EXPECT_EQ(restarts.reason(), "rank 0 ended with exit code 3 after 0 ms; then node 1 (host b) was lost: gone");
  restarts.go_on({lost, true, true}, now);
  EXPECT_EQ(restarts.reason(), "node 1 (host b) was lost: gone");
}

TEST_F(RestartsOfAJob, OnlyRoundsThatFailAtOnceAreFollowedByAPause) {
  const auto pauses_after = [&](const CurrentRound& round, bool is_change = false) {
    Restarts its{1, 0ms};
    its.go_on({round, true, is_change}, now);
    return its.pause().failures() == 1;
  };
  EXPECT_TRUE(pauses_after(failed));
  auto later = failed, stepped = failed, killed = failed, crashed = failed;
  later.failures.front().after = 10s;
  EXPECT_FALSE(pauses_after(later));
  stepped.nodes_stepped = 1;
  EXPECT_FALSE(pauses_after(stepped));
  killed.failures.front().ending = {Ending::Kind::killed, SIGKILL, false};
  EXPECT_FALSE(pauses_after(killed));
  crashed.failures.front().ending = {Ending::Kind::killed, SIGSEGV, false};
  EXPECT_TRUE(pauses_after(crashed));
  EXPECT_FALSE(pauses_after(lost, true));
}

TEST_F(RestartsOfAJob, OnlyTheFirstKillAtOnceHasNoPause) {
  auto killed = failed, stepped = failed;
  killed.failures.front().ending = {Ending::Kind::killed, SIGKILL, false};
  Restarts its{20, 0ms};
  const auto pause_after = [&](const CurrentRound& round) {
    its.go_on({round, true, false}, now);
    return its.pause().length();
  };
  EXPECT_EQ(pause_after(killed), 0ms);
  EXPECT_EQ(pause_after(killed), 100ms);
  EXPECT_EQ(pause_after(killed), 200ms);
  EXPECT_EQ(pause_after(failed), 400ms);
  stepped.nodes_stepped = 1;
  EXPECT_EQ(pause_after(stepped), 0ms);
  EXPECT_EQ(pause_after(killed), 0ms) << "the first since a round with progress";
  EXPECT_EQ(pause_after(lost), 0ms) << "nobody knows how long the round lasted";
  killed.failures.front().killed_for = "did not come to all_reduce #1";
  EXPECT_EQ(pause_after(killed), 100ms) << "ddprun did it";
  killed.failures.front().killed_for.clear();
  killed.failures.front().ending.out_of_memory = true;
  EXPECT_EQ(pause_after(killed), 200ms);
}

TEST_F(RestartsOfAJob, NodeLostAtOnceAgainIsFollowedByAPause) {
  const auto pauses_after = [&](CurrentRound round, std::optional<std::chrono::milliseconds> began_at) {
    round.began_at = began_at;
    Restarts its{9, 0ms};
    for (int i = 0; i < 3; ++i) its.go_on({round, true, false}, now);
    return its.pause().failures();
  };
  EXPECT_EQ(pauses_after(lost, 0ms), 2) << "the first loss has no pause";
  EXPECT_EQ(pauses_after(lost, {}), 0) << "nobody knows how long the round lasted";
  lost.loss->at = 10s;
  EXPECT_EQ(pauses_after(lost, 0ms), 0);
}

TEST_F(RestartsOfAJob, HostThatEndsRoundAfterRoundIsLeftOut) {
  for (std::size_t i = 0; i < CoolDown::kBlames; ++i) restarts.go_on({failed, true, false}, now);
  EXPECT_TRUE(restarts.cool_down().is_out(place_of("a", "10.0.0.1"), now));
}

TEST_F(RestartsOfAJob, RoundsThatFailAndKeepNothingAreACrashLoop) {
  restarts.set_limits(100, 0ms);
  failed.kept.commits = 1;
  restarts.end({failed, true, false}, now);
  failed.kept.commits = 0;
  for (int i = 0; i < CrashLoop::kFailures; ++i) {
    EXPECT_FALSE(restarts.is_crash_loop());
    EXPECT_TRUE(restarts.end({failed, true, false}, now));
  }
  EXPECT_TRUE(restarts.is_crash_loop());
}

TEST_F(RestartsOfAJob, RoundsThatABrokenLinkEndsAreACrashLoopUnlessAHostIsLeftOut) {
  restarts.set_limits(100, 0ms);
  failed.kept.commits = 1;
  restarts.end({failed, true, false}, now);
  for (const auto link : {Loss::Link::leaves_one_out, Loss::Link::ends_round}) {
    lost.loss->link = link;
    for (int i = 0; i < CrashLoop::kFailures; ++i) restarts.end({lost, true, false}, now);
    EXPECT_EQ(restarts.is_crash_loop(), link == Loss::Link::ends_round);
  }
}

TEST_F(RestartsOfAJob, RoundsThatLoseANodeAreNoCrashLoop) {
  restarts.set_limits(100, 0ms);
  failed.kept.commits = 1;
  restarts.end({failed, true, false}, now);
  failed.kept.commits = 0;
  auto failed_too = failed;
  failed_too.loss = lost.loss;
  for (int i = 0; i < 3 * CrashLoop::kFailures; ++i) {
    EXPECT_TRUE(restarts.end({lost, true, false}, now));
    EXPECT_TRUE(restarts.end({failed_too, true, false}, now)) << "for want of the node, or by chance";
  }
  EXPECT_FALSE(restarts.is_crash_loop());
  for (int i = 0; i < CrashLoop::kFailures; ++i) {
    restarts.end({lost, true, false}, now);
    restarts.end({failed, true, false}, now);
  }
  EXPECT_TRUE(restarts.is_crash_loop()) << "losses between failures do not excuse these";
}

TEST_F(RestartsOfAJob, RestartsBeforeNewLimitsStayCounted) {
  restarts.restate(1, {}, now);
  restarts.set_limits(2, 0ms);
  EXPECT_EQ(restarts.count(), 1);
  EXPECT_TRUE(restarts.end({failed, true, false}, now));
  restarts.go_on({failed, true, false}, now);
  EXPECT_FALSE(restarts.end({failed, true, false}, now));
}

}  // namespace
}  // namespace ddp::rendezvous
