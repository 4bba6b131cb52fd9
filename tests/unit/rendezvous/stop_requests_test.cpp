#include "rendezvous/membership/stop_requests.hpp"

#include <gtest/gtest.h>

#include <csignal>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using Request = StopRequests::Next;

const JobStop kTold{JobStop::Source::ddprun, SIGTERM, "a", NodeId{1}};

TEST(StopRequests, FirstOfAllNodesStopsTheJob) {
  const TimePoint now{1h};
  StopRequests stops;
  NodeStop one, other;
  EXPECT_EQ(stops.signal_number(), 0);
  EXPECT_EQ(stops.ask(one, kTold, false, now), Request::stop);
  EXPECT_EQ(stops.ask(other, {JobStop::Source::ddprun, SIGINT, "b", NodeId{2}}, false, now + 10s), Request::nothing);
  EXPECT_EQ(stops.signal_number(), SIGTERM);
  EXPECT_EQ(stops.stop()->asker, NodeId{1});
}

TEST(StopRequests, SecondOneToTheSameNodeKillsUnlessItComesAtOnce) {
  const TimePoint now{1h};
  StopRequests stops;
  NodeStop node;
  EXPECT_EQ(stops.ask(node, kTold, false, now), Request::stop);
  EXPECT_EQ(stops.ask(node, kTold, false, now + 200ms), Request::nothing);
  EXPECT_EQ(stops.ask(node, kTold, false, now + 201ms), Request::kill) << "counted from the first";
}

TEST(StopRequests, RequestThatIsSaidAgainCountsOnceUnlessItIsASecondOne) {
  const TimePoint now{1h};
  StopRequests stops;
  NodeStop node;
  EXPECT_EQ(stops.ask(node, kTold, false, now), Request::stop);
  node.says_again = true;
  EXPECT_EQ(stops.ask(node, kTold, false, now + 1s), Request::nothing);
  node.says_again = true;
  EXPECT_EQ(stops.ask(node, kTold, true, now + 2s), Request::kill);
  StopRequests anew;
  NodeStop unheard;
  EXPECT_EQ(anew.ask(unheard, kTold, true, now), Request::kill) << "the first was said to a membership before";
  EXPECT_TRUE(anew.stop());
}

TEST(StopRequests, DeathsOfWorkersStopTheJobOnce) {
  StopRequests stops;
  EXPECT_TRUE(stops.workers_died(SIGINT, "a", 3s));
  EXPECT_EQ(stops.stop()->source, JobStop::Source::workers);
  EXPECT_FALSE(stops.workers_died(SIGTERM, "b", 2s));
  EXPECT_EQ(stops.signal_number(), SIGINT);
  EXPECT_EQ(stops.stop()->workers_signalled_at, 2s) << "the first death counts";
  NodeStop node;
  EXPECT_EQ(stops.ask(node, kTold, false, TimePoint{1h}), Request::nothing);
}

TEST(StopRequests, WarningIsNewOnceUntilItIsForgotten) {
  StopRequests stops;
  EXPECT_TRUE(stops.warn());
  EXPECT_FALSE(stops.warn());
  stops.forget_warning();
  EXPECT_FALSE(stops.is_warned());
  EXPECT_TRUE(stops.warn());
  EXPECT_FALSE(stops.stop()) << "a warning is no stop";
}

}  // namespace
}  // namespace ddp::rendezvous
