// Who may join a job of several nodes: those that have its token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/text.hpp"

namespace ddp::test {
namespace {

using ddp::test::contents_of;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kToken = "7d3f0a5c_of_the_nodes", kOther = "b81e22c9_of_others";

Job::Options with(const std::string& token, const std::string& program = "ddprun") {
  Job::Options out;
  out.program = program;
  if (!token.empty()) out.environment = {"DDPRUN_TOKEN=" + token};
  return out;
}

std::vector<std::string> fixed(int rank, const std::string& port, const std::string& script) {
  return {"--nproc-per-node=1",
          "--nnodes=2",
          "--node-rank=" + std::to_string(rank),
          "--master-addr=127.0.0.1",
          "--master-port=" + port,
          "sh",
          "-c",
          script};
}

std::vector<std::string> dynamic(const std::string& port, const std::string& script) {
  return {"--nproc-per-node=1",
          "--nnodes=2",
          "--rdzv-backend=c10d",
          "--rdzv-endpoint=127.0.0.1:" + port,
          "--rdzv-id=job",
          "sh",
          "-c",
          script};
}

// ddprun, or ddp-rendezvous, at the endpoint.
struct Endpoint {
  Endpoint(bool is_daemon, const std::string& token)
      : is_daemon_(is_daemon),
        port(is_daemon ? "" : free_port()),
        program(
            is_daemon ? std::vector<std::string>{"--port=0", "--host=127.0.0.1"} : fixed(0, port, "echo rank $RANK"),
            with(token, is_daemon ? "ddp-rendezvous" : "ddprun")) {
    if (is_daemon)
      port = std::to_string(program.number_after("membership listens on port "));
    else
      EXPECT_TRUE(program.prints("waiting")) << program.err();
  }

  std::vector<std::string> node(const std::string& script) const {
    return is_daemon_ ? dynamic(port, script) : fixed(1, port, script);
  }

  // It must not be taken in, and tries to be for a second.
  std::vector<std::string> impatient_node() const {
    auto out = node("echo never");
    out.insert(out.begin(), "--rdzv-conf=join_timeout=4");
    return out;
  }

  bool is_daemon_;
  std::string port;
  Job program;
};

class DdprunToken : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(AtDdprun, DdprunToken, ::testing::Values(false));
INSTANTIATE_TEST_SUITE_P(AtDdpRendezvous, DdprunToken, ::testing::Values(true));

TEST_P(DdprunToken, WhoHasItJoinsAfterThoseThatDoNotWereTurnedAway) {
  Endpoint endpoint(GetParam(), kToken);
  Job wrong(endpoint.impatient_node(), with(kOther)), without(endpoint.node("echo never"), with(""));
  EXPECT_EQ(wrong.wait(), 77);
  EXPECT_THAT(wrong.err(),
              AllOf(HasSubstr("error: the endpoint has another token than this node (127.0.0.1)\n"),
                    HasSubstr("where: joining the job at 127.0.0.1:" + endpoint.port),
                    HasSubstr("try:   the same token on all nodes and at the endpoint: `--token-file=PATH`")));
  EXPECT_EQ(without.wait(), 77);
  EXPECT_THAT(without.err(), HasSubstr("error: the endpoint asks for a token, and this node has none (127.0.0.1)\n"));
  EXPECT_TRUE(endpoint.program.prints("it has another token"));
  EXPECT_TRUE(endpoint.program.prints("it has no token, which is asked for here"));

  Job right(endpoint.node("echo rank $RANK"), with(kToken));
  Job second(endpoint.is_daemon_ ? endpoint.node("echo rank $RANK") : std::vector<std::string>{"--version"},
             with(kToken));
  EXPECT_EQ(right.wait(), 0) << right.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  if (endpoint.is_daemon_) endpoint.program.kill(SIGTERM);
  EXPECT_EQ(endpoint.program.wait(), endpoint.is_daemon_ ? 1000 + SIGTERM : 0) << endpoint.program.err();
  EXPECT_THAT(right.out(), AnyOf(HasSubstr("rank 1\n"), HasSubstr("rank 0\n")));
  for (const auto* job : {&wrong, &without, &right, &endpoint.program})
    EXPECT_THAT(job->out() + job->err(), AllOf(Not(HasSubstr(kToken)), Not(HasSubstr(kOther))));
}

TEST_P(DdprunToken, WhoHasOneIsToldWhereThereIsNone) {
  Endpoint endpoint(GetParam(), "");
  Job node(endpoint.impatient_node(), with(kToken));
  EXPECT_EQ(node.wait(), 77);
  EXPECT_THAT(node.err(), HasSubstr("error: this node has a token and the endpoint has none (127.0.0.1)\n"));
  EXPECT_TRUE(endpoint.program.prints("it speaks TLS, as those do that have a token, and there is none here"));
}

TEST_P(DdprunToken, WithoutOneTheyMeetAndSayThatTheJobIsOpen) {
  Endpoint endpoint(GetParam(), "");
  Job node(endpoint.node("true"), with(""));
  Job second(endpoint.is_daemon_ ? endpoint.node("true") : std::vector<std::string>{"--version"}, with(""));
  EXPECT_EQ(node.wait(), 0) << node.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_THAT(node.err(), HasSubstr("the job is open: whoever reaches its endpoint"));
  if (endpoint.is_daemon_) endpoint.program.kill(SIGTERM);
  endpoint.program.wait();
  EXPECT_THAT(endpoint.program.err(), AnyOf(HasSubstr("the job is open"), HasSubstr("there is no token")));
}

TEST_P(DdprunToken, ADeadNodeIsNoticedUnderTlsToo) {
  Endpoint endpoint(GetParam(), kToken);
  const auto options = with(kToken);
  Job node(endpoint.node("echo up; " + kStay), options);
  std::unique_ptr<Job> second;
  if (endpoint.is_daemon_) second = std::make_unique<Job>(endpoint.node("echo up; " + kStay), options);
  auto& other = second ? *second : endpoint.program;
  ASSERT_TRUE(node.prints("up")) << node.err();
  ASSERT_TRUE(other.prints(second ? "up" : "rank 0"));
  node.kill(SIGKILL);
  EXPECT_EQ(other.wait(), 128 + SIGKILL) << other.err();
}

class DdprunTokenFile : public ::testing::Test {
 protected:
  DdprunTokenFile() {
    char name[] = "/tmp/ddprun_token_XXXXXX";
    folder = ::mkdtemp(name);
    path = folder + "/token";
    std::ofstream(path) << kToken << '\n';
    ::chmod(path.c_str(), 0600);
  }
  ~DdprunTokenFile() override { std::filesystem::remove_all(folder); }

  std::string folder, path;
};

TEST_F(DdprunTokenFile, IsReadAndNeitherShownNorHandedOn) {
  const auto port = free_port();
  const auto script = "echo token ${DDPRUN_TOKEN-none} file ${DDPRUN_TOKEN_FILE-none}; " + kStay;
  auto arguments = fixed(1, port, script);
  arguments.insert(arguments.begin(), "--token-file=" + path);
  Job zero(fixed(0, port, script), with(kToken)), one(arguments);
  ASSERT_TRUE(zero.prints("token none file none")) << zero.err();
  ASSERT_TRUE(one.prints("token none file none")) << one.err();
  for (auto* job : {&zero, &one})
    for (const auto pid : job->processes()) {
      const auto process = "/proc/" + std::to_string(pid);
      EXPECT_THAT(contents_of(process + "/cmdline"), Not(HasSubstr(kToken)));
      const bool is_worker = contents_of(process + "/comm") == "tail\n";
      EXPECT_TRUE(!is_worker || contents_of(process + "/environ").find(kToken) == std::string::npos);
    }
  one.kill(SIGTERM);
  EXPECT_EQ(zero.wait(), 143);
  EXPECT_EQ(one.wait(), 143);
  auto plan_of = fixed(0, port, "true");
  plan_of.insert(plan_of.begin(), "--dry-run");
  Job plan(plan_of, with(kToken));
  EXPECT_EQ(plan.wait(), 0);
  EXPECT_THAT(plan.out(), AllOf(HasSubstr("this is what it would do"), Not(HasSubstr(kToken))));
}

TEST_F(DdprunTokenFile, ThatOthersCanReadIsWrongUse) {
  ::chmod(path.c_str(), 0644);
  auto arguments = fixed(0, "29500", "true");
  arguments.insert(arguments.begin(), "--token-file=" + path);
  Job::Options daemon;
  daemon.program = "ddp-rendezvous";
  Job node(arguments), endpoint({"--port=0", "--token-file=" + path}, daemon);
  for (auto* job : {&node, &endpoint}) {
    EXPECT_EQ(job->wait(), 2);
    EXPECT_THAT(job->err(),
                AllOf(HasSubstr("error: the file with the token has mode 0644"), HasSubstr("\nwhere: " + path),
                      HasSubstr("\ntry:   `chmod "), Not(HasSubstr(kToken))));
  }
}

}  // namespace
}  // namespace ddp::test
