#include "rendezvous/membership/newcomers.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "rendezvous/membership/nodes.hpp"
#include "rendezvous/membership/options.hpp"
#include "rendezvous/membership/round_end.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

// A round of one node, with room for two more.
class NewcomersOfARound : public ::testing::Test {
 protected:
  NewcomersOfARound() {
    options.nodes_max = 3;
    options.last_call_timeout = 10s;
    come(1);
    nodes.make_member(NodeId{1}, 0, {});
    newcomers.round_begins(began);
  }

  void come(std::uint64_t id) {
    Node node;
    node.hello.node_key = "key-" + std::to_string(id);
    node.hello.host_name = "h" + std::to_string(id);
    nodes.add(NodeId{id}, std::move(node));
  }
  Newcomers::Next next(TimePoint now, bool is_round_ending = false) {
    return newcomers.next({options, nodes, cool_down, is_round_ending}, now);
  }

  MembershipOptions options;
  Nodes nodes;
  CoolDown cool_down;
  Newcomers newcomers;
  TimePoint began{1h};
};

TEST_F(NewcomersOfARound, AreTakenInTogetherOnceTheLastCallIsOver) {
  EXPECT_EQ(next(began + 20s).deadline, std::nullopt) << "nobody has come";
  come(2);
  const auto first = next(began + 20s);
  EXPECT_EQ(first.print, "1 more node has come: h2; the next round begins in 10 s");
  EXPECT_EQ(first.deadline, began + 30s);
  EXPECT_EQ(next(began + 21s).print, std::nullopt) << "said before";
  EXPECT_EQ(next(began + 29s).taken_in, std::nullopt);
  EXPECT_EQ(next(began + 30s).taken_in, "1 more node has come: h2");
}

TEST_F(NewcomersOfARound, FullJobWaitsForNoOtherNodeButTheRoundLastsALastCall) {
  come(2);
  come(3);
  EXPECT_EQ(next(began + 4s).deadline, began + 10s);
  EXPECT_EQ(next(began + 10s).taken_in, "2 more nodes have come: h2, h3");
  newcomers.round_begins(began);
  EXPECT_TRUE(next(began + 11s).taken_in) << "at once";
}

TEST_F(NewcomersOfARound, NobodyIsTakenInWithoutRoomOrByARoundThatEnds) {
  come(2);
  EXPECT_EQ(next(began + 20s, true).deadline, std::nullopt);
  options.nodes_max = 1;
  EXPECT_EQ(next(began + 20s).deadline, std::nullopt);
  options.nodes_max = 3;
  nodes.at(NodeId{1}).part->has_ended = true;
  EXPECT_EQ(next(began + 20s).deadline, std::nullopt);
}

TEST_F(NewcomersOfARound, HostThatIsLeftOutCountsOnceItsTimeIsOver) {
  come(2);
  for (std::size_t i = 0; i < CoolDown::kBlames; ++i) cool_down.blame(place_of("h2", ""), began);
  EXPECT_EQ(next(began + 20s).deadline, began + CoolDown::kOut);
  EXPECT_TRUE(next(began + CoolDown::kOut).print);
}

}  // namespace
}  // namespace ddp::rendezvous
