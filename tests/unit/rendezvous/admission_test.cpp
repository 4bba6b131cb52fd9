#include "rendezvous/membership/admission.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class AdmissionToAJob : public ::testing::Test {
 protected:
  AdmissionToAJob() {
    options.run_id = hello.run_id = "job";
    options.nodes_min = hello.nodes_min = 2;
    options.nodes_max = hello.nodes_max = 4;
    options.nodes_heartbeat_timeout = hello.heartbeat_timeout = 3s;
  }
  std::string objection(const Hello& its, bool has_begun = false) const {
    const auto refused = Admission{options, nodes, has_begun}.objection(its);
    return refused ? refused->what : "";
  }
  static Hello with_claim(Hello its, int group_world_size) {
    its.held = Held{};
    its.held->group_world_size = group_world_size;
    return its;
  }

  MembershipOptions options;
  Nodes nodes;
  Hello hello;
};

TEST_F(AdmissionToAJob, NodeWithTheSameSettingsMayTakePart) { EXPECT_EQ(objection(hello), ""); }

TEST_F(AdmissionToAJob, NodeWithOtherLimitsIsRefusedWithBothValues) {
  const struct {
    void (*change)(Hello& hello);
    const char *what, *try_this;
  } cases[] = {
      {[](Hello& its) { its.restarts_max = 3; }, "--max-restarts=3, the endpoint with --max-restarts=0",
       "same --max-restarts"},
      {[](Hello& its) { its.restart_window = 90s; }, "--restart-window=90, the endpoint with no --restart-window",
       "same --restart-window"},
      {[](Hello& its) { its.join_timeout = 1500ms; }, "join_timeout=1.5, the endpoint with join_timeout=600",
       "same join_timeout of --rdzv-conf"},
      {[](Hello& its) { its.last_call_timeout = 1s; }, "last_call_timeout=1, the endpoint with last_call_timeout=30",
       "same last_call_timeout of --rdzv-conf"},
      {[](Hello& its) { its.heartbeat_timeout = 250ms; },
       "heartbeat_timeout=0.25, the endpoint with heartbeat_timeout=3", "same heartbeat_timeout of --rdzv-conf"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    auto other = hello;
    c.change(other);
    const auto refused = Admission{options, nodes, false}.objection(other).value();
    EXPECT_THAT(refused.what, HasSubstr(c.what));
    EXPECT_THAT(refused.try_this, HasSubstr(c.try_this));
  }
}

TEST_F(AdmissionToAJob, SettingThatAnOlderProgramDoesNotSayIsNotCompared) {
  hello.heartbeat_timeout.reset();
  EXPECT_EQ(objection(hello), "");
  options.nodes_heartbeat_timeout.reset();
  hello.heartbeat_timeout = 1s;
  EXPECT_EQ(objection(hello), "");
}

TEST_F(AdmissionToAJob, NodesMayHaveAnotherGraceThanTheEndpoint) {
  hello.grace = 5s;
  EXPECT_EQ(objection(hello), "");
}

TEST_F(AdmissionToAJob, NodeOfAnotherJobOrStepOfSlurmMayNot) {
  auto other = hello;
  other.run_id = "other";
  EXPECT_THAT(objection(other), HasSubstr("another job than 'other'"));
  options.slurm_run = "42.0";
  EXPECT_EQ(objection(hello), "") << "it names no step";
  hello.slurm_run = "42.1";
  EXPECT_THAT(objection(hello), HasSubstr("not 42.1"));
}

TEST_F(AdmissionToAJob, NodeRankIsTakenOnlyBeforeTheFirstRoundAndByANodeThatIsHere) {
  hello.node_rank = 1;
  Node first;
  first.hello = hello;
  nodes.add(NodeId{1}, std::move(first));
  EXPECT_THAT(objection(hello), HasSubstr("node rank 1 is taken"));
  EXPECT_EQ(objection(hello, true), "") << "it may be the replacement of a node whose end is not known yet";
  nodes.begin_absence(NodeId{1}, {});
  EXPECT_EQ(objection(hello), "");
  hello.node_rank = 4;
  EXPECT_THAT(objection(hello), HasSubstr("beyond 4 nodes"));
}

TEST_F(AdmissionToAJob, ClaimedRoundHasAPossibleSize) {
  EXPECT_EQ(objection(with_claim(hello, 3)), "");
  for (const int size : {1, 5}) EXPECT_THAT(objection(with_claim(hello, size)), HasSubstr("can't be"));
}

TEST_F(AdmissionToAJob, DaemonTakesTheSettingsOfAClaimUntilARoundHasBegun) {
  hello.nodes_max = 8;
  EXPECT_THAT(objection(with_claim(hello, 8)), HasSubstr("--nnodes=2:8"));
  options.greater_part_only = false;
  EXPECT_EQ(objection(with_claim(hello, 8)), "");
  EXPECT_THAT(objection(hello), HasSubstr("--nnodes=2:8")) << "it claims no round";
  EXPECT_THAT(objection(with_claim(hello, 8), true), HasSubstr("--nnodes=2:8"));
  EXPECT_EQ((Admission{options, nodes, false}.nodes_max_for(with_claim(hello, 8))), 8);
  EXPECT_EQ((Admission{options, nodes, true}.nodes_max_for(with_claim(hello, 8))), 4);
}

TEST_F(AdmissionToAJob, NodeWithAnUnknownRoundMayComeAgain) {
  Held held;
  held.round.number = 3;
  held.nonces = {"nonce-3"};
  auto refused = refusal_of_round("a", held);
  EXPECT_THAT(refused.what, HasSubstr("know nothing of round 3"));
  EXPECT_TRUE(refused.is_round_unknown);
  EXPECT_THAT(refused.try_this, HasSubstr("without that round"));
  held.nonces.clear();
  EXPECT_THAT(refusal_of_round("a", held).try_this, HasSubstr("upgrade ddprun on host a")) << "it cannot prove it";
}

}  // namespace
}  // namespace ddp::rendezvous
