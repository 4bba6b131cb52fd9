// Replaces a token step by step while jobs run (docs/security.md, "Replace a token").
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/free_port.hpp"
#include "tests/security/nodes_with_tokens.hpp"

namespace ddp::test::token {
namespace {

using ::testing::HasSubstr;

const std::string kOld = "b81e22c9_the_old_one", kNew = "7d3f0a5c_the_new_one";

// A job whose nodes have these tokens; each must come to its end.
void expect_that_they_meet(const Daemon& daemon, const std::vector<std::string>& tokens) {
  std::deque<Job> nodes;
  for (const auto& token : tokens)
    nodes.emplace_back(node_at(daemon.port, "echo done", static_cast<int>(tokens.size())), with_token(token));
  for (auto& node : nodes) {
    EXPECT_EQ(node.wait(), 0) << node.err();
    EXPECT_THAT(node.out(), HasSubstr("done"));
  }
}

TEST(TokenRotation, NodesOfNeighbouringStepsMeet) {
  const std::string step_1 = kOld + "\n" + kNew, step_2 = kNew + "\n" + kOld;
  for (const auto& tokens : std::vector<std::vector<std::string>>{
           {kOld, step_1}, {step_1, kOld}, {step_1, step_2}, {step_2, step_1}, {step_2, kNew}, {kNew, step_2}}) {
    SCOPED_TRACE(tokens.front() + " at the endpoint, and " + tokens.back());
    const Daemon daemon(with_token(tokens.front(), "ddp-rendezvous"));
    expect_that_they_meet(daemon, tokens);
  }
}

TEST(TokenRotation, EndpointWithBothTokensTakesInNodesOfEveryStep) {
  const Daemon daemon(with_token(kNew + "\n" + kOld, "ddp-rendezvous"));
  expect_that_they_meet(daemon, {kOld, kOld + "\n" + kNew, kNew + "\n" + kOld, kNew});
}

TEST(TokenRotation, RunningJobGoesOnAtTheDaemonOfTheNextStepAndTakesInItsNodes) {
  const std::vector<std::string> elastic{"--nnodes=1:2", "--rdzv-conf=last_call_timeout=0.1"};
  const auto port = std::stol(free_port());  // nobody takes it while the daemon is away
  std::optional<Daemon> daemon(std::in_place, with_token(kOld, "ddp-rendezvous"), port);
  Job running(node_at(port, "echo up $WORLD_SIZE; " + kStay, 2, elastic), with_token(kOld));
  ASSERT_TRUE(running.prints("up 1\n")) << running.err();
  daemon.reset();
  daemon.emplace(with_token(kOld + "\n" + kNew, "ddp-rendezvous"), port);
  ASSERT_EQ(daemon->port, port) << daemon->program.err();
  Job joining(node_at(port, "echo up $WORLD_SIZE", 2, elastic), with_token(kOld + "\n" + kNew));
  EXPECT_TRUE(running.prints("up 2\n")) << running.err();
  EXPECT_TRUE(joining.prints("up 2\n")) << joining.err();
}

TEST(TokenRotation, AfterTheLastStepTheOldTokenIsRefused) {
  const Daemon daemon(with_token(kNew, "ddp-rendezvous"));
  Job late(node_at(daemon.port, "echo never", 2, {"--rdzv-conf=join_timeout=4"}), with_token(kOld));
  EXPECT_EQ(late.wait(), 77);
  EXPECT_THAT(late.err(), HasSubstr("error: the endpoint has another token than this node"));
}

}  // namespace
}  // namespace ddp::test::token
