#include "rendezvous/membership/gathering.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

// Of a job of two to four nodes.
class Gatherings : public ::testing::Test {
 protected:
  Gatherings() {
    options.nodes_min = 2;
    options.nodes_max = 4;
    options.last_call_timeout = 10s;
    gathering.begin(began + 60s);
  }

  void come(std::uint64_t id, std::optional<int> wish = {}) {
    Node node;
    node.hello.node_key = "key-" + std::to_string(id);
    node.hello.host_name = "h" + std::to_string(id);
    node.hello.node_rank = wish;
    nodes.add(NodeId{id}, std::move(node));
  }
  Gathering::Next next(TimePoint now, bool is_first = true) {
    return gathering.next({options, nodes, nodes.count_available(), is_first}, now);
  }

  MembershipOptions options;
  Nodes nodes;
  Gathering gathering;
  TimePoint began{1h};
};

TEST_F(Gatherings, TooFewNodesAreAwaitedUntilTheEnd) {
  EXPECT_EQ(next(began).print, std::nullopt) << "nobody is here";
  come(1, 3);
  const auto first = next(began + 1s);
  EXPECT_EQ(first.print, "waiting for 1 more node, for up to 10 min; here: h1 (node rank 3)");
  EXPECT_EQ(first.deadline, began + 60s);
  EXPECT_EQ(next(began + 2s).print, std::nullopt) << "said before";
  EXPECT_FALSE(next(began + 60s).is_complete);
}

TEST_F(Gatherings, FirstRoundWaitsTheLastCallForTheMaximum) {
  come(1);
  come(2);
  const auto first = next(began);
  EXPECT_EQ(first.print, "waiting 10 s for up to 2 more nodes; here: h1, h2");
  EXPECT_EQ(first.deadline, began + 10s);
  EXPECT_FALSE(next(began + 9s).is_complete);
  EXPECT_TRUE(next(began + 10s).is_complete);
  come(3);
  come(4);
  EXPECT_TRUE(next(began + 1s).is_complete);
}

TEST_F(Gatherings, FewerThanTheMaximumListenForAnotherHostFirst) {
  options.last_call_timeout = 0ms;
  gathering.listen_until(began + 2s);
  come(1);
  come(2);
  EXPECT_EQ(next(began).deadline, began + 2s);
  EXPECT_FALSE(next(began + 1999ms).is_complete);
  EXPECT_TRUE(next(began + 2s).is_complete);
  come(3);
  come(4);
  EXPECT_TRUE(next(began).is_complete) << "nobody of the job can be elsewhere";
}

TEST_F(Gatherings, LastCallBeginsAnewOnceTooFewWereHere) {
  come(1);
  come(2);
  static_cast<void>(next(began));
  nodes.remove(NodeId{2});
  static_cast<void>(next(began + 5s));
  come(3);
  EXPECT_EQ(next(began + 6s).deadline, began + 16s);
  gathering.end_last_call();
  EXPECT_EQ(next(began + 7s).deadline, began + 17s);
}

TEST_F(Gatherings, LaterRoundBeginsWithTheMinimum) {
  come(1);
  come(2);
  EXPECT_TRUE(next(began, false).is_complete);
}

TEST_F(Gatherings, LaterRoundBeginsWhenThePauseIsOver) {
  come(1);
  come(2);
  gathering.pause_until(began + 10s);
  EXPECT_FALSE(next(began + 9s, false).is_complete);
  EXPECT_EQ(next(began + 9s, false).deadline, began + 10s);
  EXPECT_TRUE(next(began + 10s, false).is_complete);
  gathering.pause_until(began + 90s);
  EXPECT_EQ(next(began + 11s, false).deadline, began + 60s) << "no longer than the wait for nodes";
  EXPECT_TRUE(next(began + 60s, false).is_complete);
}

TEST_F(Gatherings, FirstRoundIsHeldForNodesOfAnUnknownRound) {
  gathering.hold_first_round_until(began + 20s);
  for (const std::uint64_t id : {1, 2, 3, 4}) come(id);
  EXPECT_FALSE(next(began + 19s).is_complete);
  EXPECT_EQ(next(began + 19s).deadline, began + 20s);
  EXPECT_TRUE(next(began + 20s).is_complete);
  gathering.hold_first_round_until(began + 90s);
  EXPECT_TRUE(next(began + 60s).is_complete) << "the wait is over";
}

TEST_F(Gatherings, MemberWithoutConnectionIsAwaitedUntilTheEnd) {
  come(1);
  come(2);
  come(3);
  nodes.make_member(NodeId{1}, 0, {});
  nodes.begin_absence(NodeId{1}, {began + 90s, "reset"});
  EXPECT_FALSE(next(began, false).is_complete);
  EXPECT_EQ(next(began, false).deadline, began + 60s);
  EXPECT_TRUE(next(began + 60s, false).is_complete);
}

TEST_F(Gatherings, OnlyEightHostsAreNamed) {
  for (std::uint64_t id = 1; id <= 10; ++id) come(id);
  EXPECT_EQ(names_of(nodes), "h1, h2, h3, h4, h5, h6, h7, h8 and 2 more");
}

class GatheringOfNewcomers : public Gatherings {
 protected:
  GatheringOfNewcomers() { gathering.begin(began + 600s); }
  Gathering::Next away(TimePoint now, bool are_all_away = true) {
    return gathering.next({options, nodes, nodes.count_available(), false, are_all_away, are_all_away}, now);
  }
};

TEST_F(GatheringOfNewcomers, WaitsAMinuteForNodesThatAreAllAway) {
  EXPECT_EQ(away(began).print, std::nullopt) << "nobody is here";
  for (std::uint64_t id = 1; id <= 3; ++id) come(id);
  const auto first = away(began + 10s);
  EXPECT_FALSE(first.is_complete);
  EXPECT_EQ(first.deadline, began + 60s) << "since they are away";
  EXPECT_NE(first.print.value_or("").find("for up to 50 s"), std::string::npos) << first.print.value_or("nothing");
  EXPECT_EQ(away(began + 59s).print, std::nullopt) << "said before";
  EXPECT_FALSE(away(began + 59s).is_complete);
  EXPECT_TRUE(away(began + 60s).is_complete);
  EXPECT_TRUE(away(began + 61s).is_complete) << "a round that its nodes did not start does not begin the time anew";
  gathering.forget_nodes_away();
  EXPECT_FALSE(away(began + 62s).is_complete) << "others";
  EXPECT_TRUE(away(began + 63s, false).is_complete) << "their ends are proven";
}

TEST_F(GatheringOfNewcomers, WaitsWhileANodeThatCameBackEndsItsWorkers) {
  for (std::uint64_t id = 1; id <= 2; ++id) come(id);
  away(began);
  come(3);
  nodes.set_older_round(NodeId{3}, 0);
  EXPECT_FALSE(away(began + 20s, false).is_complete);
  EXPECT_FALSE(away(began + 59s, false).is_complete);
  nodes.end_older_round(NodeId{3});
  EXPECT_TRUE(away(began + 59s, false).is_complete);
}

TEST_F(GatheringOfNewcomers, DoesNotWaitWithAsManyAsTheJobTakes) {
  for (std::uint64_t id = 1; id <= 4; ++id) come(id);
  EXPECT_TRUE(away(began).is_complete);
}

}  // namespace
}  // namespace ddp::rendezvous
