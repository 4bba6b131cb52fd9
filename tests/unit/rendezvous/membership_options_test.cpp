#include "rendezvous/membership/options.hpp"

#include <gtest/gtest.h>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

Hello hello_of_a_job() {
  Hello out;
  out.run_id = "job";
  out.nodes_min = 2;
  out.nodes_max = 4;
  out.restarts_max = 3;
  return out;
}

TEST(MembershipOptions, ADaemonGoesOnWithWhoeverReachesItAndTakesNoTermFarAhead) {
  const auto options = daemon_options(hello_of_a_job(), {100, 7, 0}, 5s, {});
  EXPECT_EQ(options.nodes_max, 4);
  EXPECT_EQ(options.heartbeat_timeout, 5s);
  EXPECT_FALSE(options.greater_part_only);
  EXPECT_FALSE(options.holds_endpoint);
  EXPECT_GT(options.term_max, 100u);
  EXPECT_LT(options.term_max, MembershipOptions().term_max);
}

TEST(MembershipOptions, ANodeThatServesTheJobFirstHoldsTheEndpoint) {
  AgentHosting hosting;
  hosting.heartbeat_timeout = 5s;
  hosting.has_token = true;
  hosting.endpoint_address = "10.0.0.1";
  const auto first = agent_options(hello_of_a_job(), {100, 7, 0}, hosting);
  EXPECT_TRUE(first.greater_part_only);
  EXPECT_TRUE(first.holds_endpoint && first.has_token);
  EXPECT_EQ(first.endpoint_address, "10.0.0.1");
  EXPECT_EQ(first.heartbeat_timeout, 5s);
}

TEST(MembershipOptions, ANodeThatServesTheJobNextKnowsWhomItFollows) {
  AgentHosting hosting;
  hosting.is_next = true;
  hosting.endpoint_address = "10.0.0.1";
  hosting.lost.group_rank = 0;
  const auto next = agent_options(hello_of_a_job(), {100, 7, 0}, hosting);
  EXPECT_TRUE(next.greater_part_only);
  EXPECT_FALSE(next.holds_endpoint);
  EXPECT_EQ(next.endpoint_address, "") << "it proves nothing away from the endpoint";
  EXPECT_EQ(next.lost.group_rank, 0);
}

TEST(MembershipOptions, TheTermIsNewerThanTheLastRoundOfTheJobBefore) {
  JobBefore before;
  before.last_round = {200, 3, 5};
  EXPECT_EQ(options_of(hello_of_a_job(), {100, 7, 0}, before).term.term, 201u);
  EXPECT_EQ(options_of(hello_of_a_job(), {300, 7, 0}, before).term.term, 300u);
}

}  // namespace
}  // namespace ddp::rendezvous
