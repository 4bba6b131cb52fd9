// What comes from other nodes and from workers can't forge a line of ours, nor does the terminal obey it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/integration/job.hpp"
#include "tests/security/control_messages.hpp"
#include "tests/security/daemon.hpp"
#include "tests/security/raw_peer.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Nothing that kForged brings.
const auto kIsClean = AllOf(Not(HasSubstr("\nddprun: forged")), Not(HasSubstr("\nwhere: forged")),
                            Not(HasSubstr("\x1b")), Not(HasSubstr("\x07")), Not(HasSubstr("\xc2\x9b")),
                            Not(HasSubstr("\xe2\x80\xa8")), Not(HasSubstr("\xe2\x80\xae")), Not(HasSubstr("\x9b")));

TEST(ForgedLines, NotByANameInAHello) {
  for (const auto* name : {"host_name", "run_id", "role", "slurm_run"}) {
    Daemon daemon;  // each says the first refusal of its kind at once
    auto attacker = RawPeer::agent(daemon.port());
    auto hello = hello_of('a');
    hello[name] = kForged.substr(kForged.find("\xc2\x9b"));  // without a control character of ASCII
    attacker.say(hello.dump());
    EXPECT_TRUE(attacker.is_cut_off());
    EXPECT_TRUE(daemon.prints("the field \\\"" + std::string(name) + "\\\" holds a control character")) << daemon.err();
    EXPECT_THAT(daemon.err(), kIsClean);
  }
}

TEST(ForgedLines, NotByAMembersFailure) {
  Daemon daemon;
  for (const auto* field : {"host", "program", "message", "stderr_file", "stderr_tail", "gpu_faults"}) {
    SCOPED_TRACE(field);
    HostileMember attacker(daemon);
    Job node(daemon.node("2", "echo up; " + kStay));
    ASSERT_TRUE(attacker.opens_store()) << daemon.err();
    ASSERT_TRUE(node.prints("up\n")) << node.err();
    auto message = json_of(rendezvous::ToMembership(attacker.failed_round()));
    auto& text = message["failures"][0][field];
    text.is_array() ? text = {kForged} : text = kForged;
    attacker.peer().say(message.dump());
    EXPECT_EQ(node.wait(), 77) << node.err();  // it has lost the attacker's node
    EXPECT_THAT(node.err(), kIsClean);
    EXPECT_TRUE(attacker.peer().is_cut_off());
  }
  EXPECT_THAT(daemon.err(), kIsClean);
}

TEST(ForgedLines, NotByAnEndpoint) {
  const auto verdict = json_of(rendezvous::ToAgent(rendezvous::FinishJob{1, {}, {}, 0, 1, 0, "what", "try"}));
  const auto refusal = json_of(rendezvous::ToAgent(rendezvous::Refused{"what", "try"}));
  auto endpoint = RawPeer::endpoint();
  Job node(node_of("127.0.0.1:" + std::to_string(endpoint.port()), "2", kStay));
  for (const auto& sound : {verdict, refusal})
    for (const auto* field : {"what", "try"}) {
      SCOPED_TRACE(field);
      ASSERT_TRUE(endpoint.hear("hello")) << node.err();
      endpoint.say(json_of(rendezvous::ToAgent(rendezvous::Welcome{})).dump());
      auto message = sound;
      message[field] = kForged;
      endpoint.say(message.dump());
    }
  ASSERT_TRUE(endpoint.hear("hello")) << node.err();
  endpoint.say(verdict.dump());
  EXPECT_EQ(node.wait(), 1);
  EXPECT_THAT(node.err(), AllOf(HasSubstr("error: what\nwhere: between the nodes"), kIsClean));
}

// The worker's own output is shown as it is, on its own node; here the other one is looked at.
TEST(ForgedLines, NotByAWorkersStderrErrorFileOrName) {
  const ScratchDirectory scratch;
  const auto program = scratch.path() / (kForged + ".sh");  // without a slash
  const auto text = scratch.path() / "text";
  std::ofstream(text) << kForged << "\xff\ncaf\xc3\xa9\n";
  std::ofstream(scratch.path() / "error.json")
      << Json{{"message", "cause " + kForged.substr(kForged.find('\x1b'))}}.dump();
  std::ofstream(program) << "#!/bin/sh\n[ \"$GROUP_RANK\" = 1 ] || exec tail -f /dev/null\ncat '" << text.string()
                         << "' >&2\ncp '" << (scratch.path() / "error.json").string()
                         << "' $TORCHELASTIC_ERROR_FILE\nexit 3\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  Daemon daemon;
  auto arguments = daemon.node("2", "");
  arguments.resize(arguments.size() - 3);
  arguments.push_back(program.string());
  auto first = arguments, second = arguments;
  first.insert(first.begin(), "--node-rank=0");
  second.insert(second.begin(), "--node-rank=1");
  Job looked_at(first), failing(second);
  EXPECT_EQ(looked_at.wait(), 3) << looked_at.err();
  EXPECT_THAT(looked_at.err(), kIsClean);
  EXPECT_THAT(looked_at.err(), HasSubstr("\ncause: cause \\x1b]0;forged\\x07\\u009b2J\\u2028ddprun: forged\\u202e\n"));
  EXPECT_THAT(looked_at.err(), HasSubstr("\n  | where: forged\\x1b]0;forged\\x07"));
  EXPECT_THAT(looked_at.err(), HasSubstr("\\u202e\\xff\n  | caf\xc3\xa9\n"));
  EXPECT_THAT(looked_at.err(), HasSubstr(", round 0, " + scratch.path().string() + "/x\\nddprun: forged\\nwhere: "));
  EXPECT_THAT(daemon.err(), kIsClean);
}

}  // namespace
}  // namespace ddp::test
