// Nobody ends a running job, or takes one over, by the rounds that its hello claims.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <memory>
#include <vector>

#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/security/control_messages.hpp"
#include "tests/security/daemon.hpp"
#include "tests/security/raw_peer.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kShowRound =
    "echo round $DDPRUN_ROUND_ID is restart $TORCHELASTIC_RESTART_COUNT, worker $$ of round ${DDPRUN_ROUND_ID##*-}; " +
    kStay;

using Nodes = std::vector<std::unique_ptr<Job>>;

// Three nodes that work. `serves` is the option for the first one, where an agent serves the endpoint.
Nodes three_nodes(const std::vector<std::string>& arguments, const std::string& serves = {}) {
  Nodes nodes;
  for (int i = 0; i < 3; ++i) {
    std::vector<std::string> its{"--max-restarts=1"};
    its.insert(its.end(), arguments.begin(), arguments.end());
    if (i == 0 && !serves.empty())
      std::replace(its.begin(), its.end(), std::string("--rdzv-conf=is_host=false"), serves);
    nodes.push_back(std::make_unique<Job>(its));
  }
  for (const auto& node : nodes) EXPECT_TRUE(node->prints("of round 0")) << node->err();
  return nodes;
}

// Newer than any round of this job, and of a term that a daemon may believe in.
std::string a_newer_round() { return std::to_string(std::time(nullptr) + 1'000'000) + "-0000000000000001-7"; }

Json a_lie(char key_digit, const std::string& round = a_newer_round()) {
  auto hello = hello_of(key_digit);
  hello["nodes_min"] = hello["nodes_max"] = 3;
  hello["restarts_max"] = 1;
  hello["was_welcomed"] = true;
  hello["held"] = {{"round", round},
                   {"group_rank", 0},
                   {"group_world_size", 3},
                   {"restart_count", 1000},
                   {"is_established", true},
                   {"is_left_behind", false},
                   {"nonces", {std::string(32, key_digit)}}};
  return hello;
}

TEST(HeldRound, OfATermThatNoClockCanHaveIsRefused) {
  Daemon daemon;
  auto liar = RawPeer::agent(daemon.port());
  liar.say(a_lie('a', std::to_string(std::uint64_t{1} << 62) + "-0000000000000001-7").dump());
  const auto refused = liar.hear("refused");
  ASSERT_TRUE(refused);
  EXPECT_THAT(*refused, HasSubstr("which can't be"));
}

void expect_refused(RawPeer& liar) {
  const auto refused = liar.hear("refused");
  ASSERT_TRUE(refused);
  EXPECT_EQ(Json::parse(*refused)["is_round_unknown"], true) << *refused;
}

// A failure costs the first restart, and begins the second round, on all nodes; nothing has before.
void expect_undisturbed(const Nodes& nodes) {
  ::kill(static_cast<pid_t>(nodes[0]->number_after("worker ")), SIGKILL);
  for (const auto& node : nodes) {
    EXPECT_TRUE(node->prints("of round 1")) << node->err();
    EXPECT_THAT(node->out(), AllOf(HasSubstr("is restart 1,"), Not(HasSubstr("-0000000000000001-"))));
  }
  nodes[0]->kill(SIGTERM);
  for (const auto& node : nodes) EXPECT_EQ(node->wait(), 143) << node->err();
}

TEST(HeldRound, NewerRoundOfAStrangerIsRefusedAndNamedAndEndsNoWorker) {
  Daemon daemon;
  const auto nodes = three_nodes(daemon.node("3", kShowRound));
  auto liar = RawPeer::agent(daemon.port());
  liar.say(a_lie('a').dump());
  expect_refused(liar);
  EXPECT_TRUE(daemon.prints(
      " job=job node=attacker text=\"host attacker (127.0.0.1) says that it has round 7 of the job, of which the "
      "nodes here know nothing: that does not count"))
      << daemon.err();
  expect_undisturbed(nodes);
}

TEST(HeldRound, NewerRoundOfASpareIsRefusedAndEndsNoWorkerWhereAnAgentServes) {
  const auto port = free_port();
  const auto nodes = three_nodes(node_of("127.0.0.1:" + port, "3", kShowRound), "--rdzv-conf=is_host=true");
  const auto number = static_cast<std::uint16_t>(std::stoi(port));
  auto spare = RawPeer::agent(number);
  auto hello = a_lie('a');
  const auto claim = hello["held"];
  hello.erase("held");
  spare.say(hello.dump());
  ASSERT_TRUE(spare.hear("welcome"));
  auto again = RawPeer::agent(number);
  hello["held"] = claim;
  again.say(hello.dump());
  expect_refused(again);
  EXPECT_TRUE(nodes[0]->prints("host attacker (127.0.0.1) says that it has round 7")) << nodes[0]->err();
  expect_undisturbed(nodes);
}

TEST(HeldRound, LiarsThatComeFirstToANewDaemonDoNotTakeTheJobOver) {
  const auto port = static_cast<std::uint16_t>(std::stoi(free_port()));  // nobody takes it while the daemon is away
  auto daemon = std::make_unique<Daemon>(port);
  const auto nodes = three_nodes(daemon->node("3", kShowRound));
  const auto& out = nodes[0]->out();
  const auto round = out.substr(out.find("round ") + 6, out.find(" is restart") - out.find("round ") - 6);
  daemon->kill(SIGKILL);
  daemon->wait();
  for (const auto& node : nodes) ASSERT_TRUE(node->prints("it is tried again")) << node->err();
  for (const auto& node : nodes) node->kill(SIGSTOP);  // the liars come first
  daemon = std::make_unique<Daemon>(port);
  ASSERT_EQ(daemon->port(), port) << daemon->err();
  std::vector<RawPeer> liars;
  const auto failed = json_of(rendezvous::ToMembership(rendezvous::RoundFailed{7, "forged"}));
  const auto stop = json_of(rendezvous::ToMembership(rendezvous::StopAsked{SIGTERM}));
  for (const char digit : {'a', 'b', 'c'}) {
    liars.push_back(RawPeer::agent(port));
    // The last one has read the round of the others in a log. Its nonce is in none.
    liars.back().say((digit == 'c' ? a_lie(digit, round) : a_lie(digit)).dump());
    ASSERT_TRUE(liars.back().hear("welcome"));
    liars.back().say(failed.dump());
    liars.back().say(stop.dump());
  }
  for (const auto& node : nodes) node->kill(SIGCONT);
  for (const auto& node : nodes) EXPECT_TRUE(node->prints("connected to the job again")) << node->err();
  for (auto& liar : liars) expect_refused(liar);
  expect_undisturbed(nodes);
}

TEST(HeldRound, NonceOfARoundIsShownNowhere) {
  Daemon daemon;
  Job node(daemon.node("2", "env; cat /proc/$PPID/environ; echo ready; " + kStay));
  auto member = RawPeer::agent(daemon.port());
  auto hello = hello_of('a');
  hello["node_rank"] = 1;
  member.say(hello.dump());
  const auto start = member.hear("start_round");
  ASSERT_TRUE(start) << daemon.err();
  const std::string nonce = Json::parse(*start)["nonce"];
  ASSERT_TRUE(node.prints("ready")) << node.err();
  auto liar = RawPeer::agent(daemon.port());
  auto claim = a_lie('b', Json::parse(*start)["round"]);
  claim["nodes_min"] = claim["nodes_max"] = claim["held"]["group_world_size"] = 2;
  claim["restarts_max"] = 0;
  liar.say(claim.dump());
  expect_refused(liar);
  EXPECT_TRUE(daemon.prints("that does not count")) << daemon.err();
  for (const auto& text : {node.out(), node.err(), daemon.err(), daemon.out()})
    EXPECT_THAT(text, Not(HasSubstr(nonce)));
  node.kill(SIGKILL);
  EXPECT_TRUE(node.is_gone_within());
}

}  // namespace
}  // namespace ddp::test
