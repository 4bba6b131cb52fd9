// What a message holds cannot run code on other nodes: variables, addresses and ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/integration/job.hpp"
#include "tests/security/control_messages.hpp"
#include "tests/security/daemon.hpp"
#include "tests/security/raw_peer.hpp"

namespace ddp::test {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kInjection = "127.0.0.1\0INJECTED=yes\0LD_PRELOAD=/tmp/evil.so"s;

// One worker that tells whether a variable was brought into its environment.
const std::string kTell = "echo \"injected: [$INJECTED$LD_PRELOAD]\"; " + kStay;

TEST(MessageContent, AddressOfAHelloBringsNoVariableIntoOtherNodes) {
  Daemon daemon;
  Job first(daemon.node("2", kTell));
  ASSERT_TRUE(daemon.prints("waiting for 1 more node")) << daemon.err();
  auto attacker = RawPeer::agent(daemon.port());
  auto hello = hello_of('a');
  hello["node_rank"] = 0;
  hello["local_address"] = kInjection;
  attacker.say(hello.dump());
  EXPECT_FALSE(attacker.hear("open_store")) << "it is taken in";
  attacker.say(json_of(rendezvous::ToMembership(rendezvous::StoreOpened{0, 29400})).dump());
  EXPECT_TRUE(
      daemon.prints("from 127.0.0.1 ended before it said which job it belongs to: malformed message: the field "
                    "\\\"local_address\\\" holds a control character"))
      << daemon.err();
  Job second(daemon.node("2", kTell));
  for (auto* node : {&first, &second}) {
    EXPECT_TRUE(node->prints("]\n")) << node->err();
    EXPECT_THAT(node->out(), HasSubstr("injected: []\n"));
  }
  first.kill(SIGTERM);
  for (auto* node : {&first, &second}) EXPECT_EQ(node->wait(), 143) << node->err();
}

// 240 KB, of which each bracket would take stack. The endpoint, and the worker of its node, go on.
TEST(MessageContent, DeeplyNestedMessageEndsItsOwnConnectionOnly) {
  const std::size_t depth = 120'000;
  const auto lists = std::string(depth, '[') + std::string(depth, ']');
  Daemon daemon;
  Job node(daemon.node("2", kTell)), second(daemon.node("2", kTell));
  ASSERT_TRUE(node.prints("injected")) << node.err();
  auto attacker = RawPeer::agent(daemon.port());
  attacker.say(R"({"type":"round_failed","round":1,"what":"x","job_time_ms":1,"hung_ranks":)" + lists + "}");
  EXPECT_TRUE(attacker.is_cut_off());
  EXPECT_TRUE(daemon.prints("nested too deep")) << daemon.err();
  node.kill(SIGTERM);
  for (auto* each : {&node, &second}) EXPECT_EQ(each->wait(), 143) << each->err();

  auto endpoint = RawPeer::endpoint();
  Job other(node_of("127.0.0.1:" + std::to_string(endpoint.port()), "2", kTell));
  ASSERT_TRUE(endpoint.hear("hello")) << other.err();
  endpoint.say(R"({"type":"stop_round","round":1,"signal_number":15,"hung_ranks":)" + lists + "}");
  EXPECT_TRUE(endpoint.hear("hello")) << "it comes again: " << other.err();
  other.kill(SIGTERM);
  EXPECT_EQ(other.wait(), 143) << other.err();
}

TEST(MessageContent, HostileEndpointSetsNothingButRanks) {
  auto endpoint = RawPeer::endpoint();
  Job node(node_of("127.0.0.1:" + std::to_string(endpoint.port()), "2", kTell));
  rendezvous::StartRound sound;
  sound.nonce = std::string(32, '0');
  sound.round = {1, 1, 1};
  sound.group_world_size = sound.world_size = sound.role_world_size = 2;
  sound.master_address = "127.0.0.1";
  sound.master_port = 29400;
  const auto start = json_of(rendezvous::ToAgent(sound));
  const auto open = json_of(rendezvous::ToAgent(rendezvous::OpenStore{{1, 1, 1}, {}, true}));
  const struct {
    Json message;
    const char* field;
    Json value;
  } cases[] = {{start, "master_address", kInjection},
               {start, "rank_first", 2},
               {start, "world_size", 1},
               {start, "group_rank", 2},
               {start, "why", kForged},
               {open, "allow", {"any"}},
               {open, "allow", {"0.0.0.0/0"}}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.field);
    ASSERT_TRUE(endpoint.hear("hello")) << node.err();
    endpoint.say(json_of(rendezvous::ToAgent(rendezvous::Welcome{})).dump());
    auto message = c.message;
    message[c.field] = c.value;
    endpoint.say(message.dump());
  }
  ASSERT_TRUE(endpoint.hear("hello")) << node.err();
  EXPECT_THAT(node.out(), Not(HasSubstr("injected: "))) << "a worker was started";
  endpoint.say(json_of(rendezvous::ToAgent(rendezvous::Welcome{})).dump());
  endpoint.say(start.dump());
  EXPECT_TRUE(node.prints("injected: []\n")) << node.err();
  EXPECT_THAT(node.err(), HasSubstr("malformed message: the field \"master_address\" holds a control character"));
  node.kill(SIGKILL);
  EXPECT_TRUE(node.is_gone_within());
}

}  // namespace
}  // namespace ddp::test
