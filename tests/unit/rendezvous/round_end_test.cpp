#include "rendezvous/membership/round_end.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "ended_round.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

TEST(RoundEnd, FailureThatGoesWithALossIsAChangeOfMembers) {
  CurrentRound round;
  round.stopped = 1;
  EXPECT_FALSE(is_change_of_members(round, true, true));
  round.failures = {failed_at(20s)};
  EXPECT_TRUE(is_change_of_members(with_loss(round, 30s), true, true));
  EXPECT_FALSE(is_change_of_members(with_loss(round, 31s), true, true)) << "it failed long before";
  EXPECT_FALSE(is_change_of_members(with_loss(round, 30s), true, false)) << "too few nodes are left";
  EXPECT_EQ(why_ended(with_loss(round, 30s), true), "node 1 (host b) was lost: gone");
  EXPECT_EQ(why_ended(with_loss(round, 31s), false), "rank 0 ended with exit code 3 after 0 ms");
  EXPECT_EQ(place_to_blame(with_loss(round, 30s), true), place_of("b", "10.0.0.2"));
  EXPECT_EQ(place_to_blame(with_loss(round, 31s), false), place_of("a", "10.0.0.1"));
}

TEST(RoundEnd, WorkersThatAllEndedWellHaveDoneTheirWork) {
  EXPECT_FALSE(is_change_of_members(with_loss({}, 30s), true, true));
  EXPECT_TRUE(is_change_of_members(with_loss({}, 30s), false, true)) << "no worker was started";
}

TEST(RoundEnd, FailureAfterTheStopForMoreNodesIsForgiven) {
  CurrentRound round;
  round.change = {"1 more node has come: c", 10s};
  round.failures = {failed_at(9s), failed_at(10s)};
  forgive_what_follows_from_change(round);
  EXPECT_EQ(round.failures.size(), 1u);
  EXPECT_EQ(round.stopped, 1);
}

TEST(RoundEnd, WhoWasKilledIsTheCauseThoughTheRoundWasJustStoppedForMoreNodes) {
  CurrentRound round;
  round.change = {"1 more node has come: c", 10s};
  round.failures = {failed_at(9s + 900ms, {Ending::Kind::left, 0, false}),
                    failed_at(10s, {Ending::Kind::killed, SIGKILL, false})};
  forgive_what_follows_from_change(round);
  ASSERT_EQ(round.failures.size(), 2U);
  EXPECT_EQ(cause_of(round)->ending.value, SIGKILL);
}

TEST(RoundEnd, DeathByTheSignalThatStopsTheJobIsForgiven) {
  JobStop stop;
  stop.signal_number = SIGTERM;
  CurrentRound round;
  round.failures = {failed_at(1s, {Ending::Kind::killed, SIGTERM, false}),
                    failed_at(2s, {Ending::Kind::killed, SIGKILL, false}), failed_at(3s)};
  auto before = round;
  forgive_what_follows_from_signals(round, stop);
  EXPECT_EQ(round.failures.size(), 2u);
  stop.note_signalled(2900ms);
  stop.note_signalled(3s);
  stop.round_stopped_at = 2s;
  forgive_what_follows_from_signals(before, stop);
  EXPECT_TRUE(before.failures.empty());
  EXPECT_EQ(before.stopped, 3);
}

}  // namespace
}  // namespace ddp::rendezvous
