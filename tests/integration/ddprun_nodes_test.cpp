// Jobs of several nodes, each a ddprun of its own, on this host: they meet, run, fail and start again together.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "rendezvous/store/client.hpp"
#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"

namespace ddp::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> node(const std::vector<std::string>& meeting, const std::string& script,
                              std::vector<std::string> options = {}) {
  std::vector<std::string> out{"--nproc-per-node=2"};
  out.insert(out.end(), meeting.begin(), meeting.end());
  out.insert(out.end(), options.begin(), options.end());
  out.insert(out.end(), {"sh", "-c", script});
  return out;
}

std::vector<std::string> fixed(int nodes, int rank, const std::string& port) {
  return {"--nnodes=" + std::to_string(nodes), "--node-rank=" + std::to_string(rank), "--master-addr=127.0.0.1",
          "--master-port=" + port};
}

std::vector<std::string> dynamic(int nodes, const std::string& port, const std::string& id = "job") {
  return {"--nnodes=" + std::to_string(nodes), "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:" + port,
          "--rdzv-id=" + id};
}

std::vector<std::string> with(std::vector<std::string> meeting, const std::string& option) {
  meeting.push_back(option);
  return meeting;
}

std::vector<std::string> elastic(const std::string& nodes, const std::string& port) {
  return {"--nnodes=" + nodes, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:" + port, "--rdzv-id=job",
          "--rdzv-conf=last_call_timeout=1"};
}

const std::string kShow =
    "echo node $GROUP_RANK of $GROUP_WORLD_SIZE rank $RANK of $WORLD_SIZE local $LOCAL_RANK of "
    "$LOCAL_WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT id $TORCHELASTIC_RUN_ID";

TEST(DdprunNodes, MeetByNodeRank) {
  const auto port = free_port();
  Job one(node(fixed(2, 1, port), kShow));  // may come first, and waits
  Job zero(node(fixed(2, 0, port), kShow));
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_THAT(zero.out(), HasSubstr("node 0 of 2 rank 1 of 4 local 1 of 2 at 127.0.0.1:" + port + " id none\n"));
  EXPECT_THAT(one.out(), HasSubstr("node 1 of 2 rank 2 of 4 local 0 of 2 at 127.0.0.1:" + port + " id none\n"));
}

TEST(DdprunNodes, MeetAtAnEndpointThatTheFirstOneServes) {
  const auto port = free_port();
  std::vector<std::unique_ptr<Job>> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(std::make_unique<Job>(node(dynamic(3, port), kShow)));
  std::string all;
  for (auto& job : jobs) {
    EXPECT_EQ(job->wait(), 0) << job->err();
    all += job->out();
  }
  for (int rank = 0; rank < 6; ++rank)
    EXPECT_THAT(all, HasSubstr("node " + std::to_string(rank / 2) + " of 3 rank " + std::to_string(rank) +
                               " of 6 local " + std::to_string(rank % 2) + " of 2 at 127.0.0.1:" + port + " id job\n"));
}

TEST(DdprunNodes, ANodeRankIsHonouredWhoeverServesTheEndpoint) {
  const auto port = free_port();
  auto last = dynamic(2, port), first = dynamic(2, port);
  last.push_back("--node-rank=1");
  first.push_back("--node-rank=0");
  Job host(node(last, kShow));
  ASSERT_TRUE(host.prints("waiting"));
  Job other(node(first, kShow));
  EXPECT_EQ(host.wait(), 0) << host.err();
  EXPECT_EQ(other.wait(), 0) << other.err();
  EXPECT_THAT(host.out(), HasSubstr("node 1 of 2 rank 2 of 4"));
  EXPECT_THAT(other.out(), HasSubstr("node 0 of 2 rank 0 of 4"));
  EXPECT_THAT(other.out(), Not(HasSubstr(":" + port))) << "the store is with rank 0, on a port of its own";
}

TEST(DdprunNodes, FailAndStartAgainTogetherWithinOneBudget) {
  const auto port = free_port();
  const auto script =
      "echo round $TORCHELASTIC_RESTART_COUNT rank $RANK; "
      "case $RANK$TORCHELASTIC_RESTART_COUNT in 30) exit 3;; 01) kill -9 $$;; esac; "
      "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || " +
      kStay;
  Job zero(node(fixed(2, 0, port), script, {"--max-restarts=2"})),
      one(node(fixed(2, 1, port), script, {"--max-restarts=2"}));
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
  for (auto* job : {&zero, &one}) {
    EXPECT_THAT(job->err(), HasSubstr("rank 3 ended with exit code 3"));
    EXPECT_THAT(job->err(), HasSubstr("restart 1 of 2"));
    EXPECT_THAT(job->err(), HasSubstr("rank 0 was killed by SIGKILL"));
    EXPECT_THAT(job->err(), HasSubstr("restart 2 of 2"));
  }
  EXPECT_THAT(one.out(), HasSubstr("round 2 rank 3\n"));
}

TEST(DdprunNodes, PrintOneSummaryAndEndWithOneCode) {
  const auto port = free_port();
  const auto script = "[ $RANK != 2 ] || { echo the reason >&2; exit 5; }; trap 'exit 9' TERM; while :; do :; done";
  Job zero(node(fixed(2, 0, port), script)), one(node(fixed(2, 1, port), script));
  EXPECT_EQ(zero.wait(), 5) << zero.err();
  EXPECT_EQ(one.wait(), 5) << one.err();
  const auto summary = [](const Job& job) {
    return job.err().substr(std::min(job.err().find("error:"), job.err().size()));
  };
  EXPECT_EQ(summary(zero), summary(one));
  EXPECT_THAT(summary(zero), AllOf(HasSubstr("rank 2 ended with exit code 5"),
                                   HasSubstr("the other 3 ranks were stopped"), HasSubstr("  | the reason\n")));
}

TEST(DdprunNodes, ASignalToOneStopsAll) {
  const auto port = free_port();
  Job zero(node(fixed(2, 0, port), "echo up; " + kStay)), one(node(fixed(2, 1, port), "echo up; " + kStay));
  ASSERT_TRUE(zero.prints("up", 2));
  ASSERT_TRUE(one.prints("up", 2));
  one.kill(SIGINT);
  EXPECT_EQ(zero.wait(), 130);
  EXPECT_EQ(one.wait(), 130);
  EXPECT_THAT(one.err(), HasSubstr("SIGINT from pid " + std::to_string(::getpid())));
  EXPECT_THAT(zero.err(), HasSubstr("SIGINT to ddprun on host"));
  EXPECT_THAT(zero.err(), Not(HasSubstr("error:")));
}

TEST(DdprunNodes, ASecondSignalWhereTheEndpointIsKillsAllAndTheyEndAlike) {
  const auto port = free_port();
  const std::vector<std::string> grace{"--shutdown-timeout=600"};  // the test does not wait for its end
  // A second signal within 200 ms would count as an echo of the first. The signal reaches children as well.
  const std::string end_slowly = "trap 'trap \"\" INT TERM; sleep 0.3; exit 0' INT; echo up; ";
  Job zero(node(fixed(2, 0, port), end_slowly + kWaitForSignals, grace));
  Job one(node(fixed(2, 1, port), "trap '' INT TERM; echo up; " + kStay, grace));
  ASSERT_TRUE(zero.prints("up", 2));
  ASSERT_TRUE(one.prints("up", 2));
  zero.kill(SIGINT);
  ASSERT_TRUE(becomes_true([&] { return zero.processes().size() == 2; }));  // its own workers have ended
  zero.kill(SIGINT);
  EXPECT_EQ(one.wait(), 130) << one.err();
  EXPECT_EQ(zero.wait(), 130) << zero.err();
}

TEST(DdprunNodes, CtrlZSuspendsNoNodeAsTheOthersWouldTakeItForDead) {
  const auto port = free_port();
  Job zero(node(fixed(2, 0, port), "echo up; " + kStay)), one(node(fixed(2, 1, port), "echo up; " + kStay));
  ASSERT_TRUE(zero.prints("up", 2));
  ASSERT_TRUE(one.prints("up", 2));
  one.kill(SIGTSTP);
  EXPECT_TRUE(one.prints("ctrl-z suspends no job of several nodes"));
  for (const auto pid : one.processes()) EXPECT_NE(process_state(pid), 'T');
  one.kill(SIGTERM);
  EXPECT_EQ(one.wait(), 143);
  EXPECT_EQ(zero.wait(), 143);
}

TEST(DdprunNodes, ANodeThatCannotLogSaysSoEverywhere) {
  char folder[] = "/tmp/ddprun_test_XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  // The round begins when the third node joins: the last call is longer than the test waits for anything.
  auto options = elastic("2:3", free_port());
  options.back() = "--rdzv-conf=last_call_timeout=300";
  Job zero(node(options, kStay));
  ASSERT_TRUE(zero.prints("waiting for 1 more node"));  // it serves the endpoint, and prints who is missing
  Job one(node(options, kStay, {"--log-dir=" + std::string(folder), "--redirects=3"}));
  ASSERT_TRUE(zero.prints("for up to 1 more node"));  // node 1 has joined, and found no fault with its folder
  std::filesystem::remove_all(folder);
  std::ofstream(folder) << "in the way of the folder";
  Job two(node(options, kStay));
  for (auto* job : {&zero, &one, &two}) EXPECT_EQ(job->wait(), 126);
  for (auto* job : {&zero, &one, &two})
    EXPECT_THAT(job->err(),
                AllOf(HasSubstr("error: rank 2 could not be started"), HasSubstr("cause: the folder for log files"),
                      HasSubstr(folder), HasSubstr("try:   read the cause")));
  std::filesystem::remove_all(folder);
}

TEST(DdprunNodes, TheStoreOutlivesTheWorkersOfItsNode) {
  const auto port = free_port();
  Job zero(node(fixed(2, 0, port), "echo done")), one(node(fixed(2, 1, port), "echo up; " + kStay));
  ASSERT_TRUE(zero.prints("done", 2));
  ASSERT_TRUE(one.prints("up", 2));
  ASSERT_TRUE(becomes_true([&] { return zero.processes().size() == 2; }));  // ddprun and its guardian
  auto client = store::Client::connect(
      {"127.0.0.1", static_cast<std::uint16_t>(std::stoi(port)), std::chrono::steady_clock::now() + kPatience});
  EXPECT_EQ(client.add("late", 1, std::chrono::steady_clock::now() + kPatience), 1);
  one.kill(SIGTERM);
  EXPECT_EQ(zero.wait(), 143);
  EXPECT_EQ(one.wait(), 143);
}

TEST(DdprunNodes, ANodeThatDiesStopsTheOthersAndIsNamed) {
  const auto port = free_port();
  Job zero(node(fixed(2, 0, port), "echo up; " + kStay)), one(node(fixed(2, 1, port), "echo up; " + kStay));
  ASSERT_TRUE(zero.prints("up", 2));
  ASSERT_TRUE(one.prints("up", 2));
  one.kill(SIGKILL);
  EXPECT_EQ(zero.wait(), 128 + SIGKILL);
  EXPECT_THAT(zero.err(), ContainsRegex("error: node 1 \\(host .*\\) was lost: its ddprun was killed by SIGKILL"));
  EXPECT_TRUE(zero.is_gone_within());
  EXPECT_TRUE(one.is_gone_within());
}

// Nobody is left on that node who could say how.
TEST(DdprunNodes, ANodeThatDiesTogetherWithItsGuardianIsNamed) {
  const auto port = free_port();
  Job zero(node(fixed(2, 0, port), "echo up; " + kStay));
  Job one(node(fixed(2, 1, port), "echo guardian $PPID; " + kStay));
  ASSERT_TRUE(zero.prints("up", 2));
  ASSERT_TRUE(one.prints("guardian", 2));
  const auto guardian = static_cast<pid_t>(one.number_after("guardian "));
  for (const pid_t pid : {one.pid(), guardian}) ::kill(pid, SIGSTOP);  // so that neither sees the other's end
  for (const pid_t pid : {one.pid(), guardian}) ::kill(pid, SIGKILL);
  EXPECT_EQ(zero.wait(), 77);
  EXPECT_THAT(zero.err(), ContainsRegex("error: node 1 \\(host .*\\) was lost: (it closed the connection|"
                                        "Connection reset by peer)"));
  EXPECT_TRUE(one.is_gone_within());
}

TEST(DdprunNodes, ANodeWhoseGuardianDiesTellsTheOthersWhy) {
  const auto port = free_port();
  Job zero(node(fixed(2, 0, port), "echo up; " + kStay));
  Job one(node(fixed(2, 1, port), "echo guardian $PPID; " + kStay));
  ASSERT_TRUE(zero.prints("up", 2));
  ASSERT_TRUE(one.prints("guardian", 2));
  ::kill(static_cast<pid_t>(one.number_after("guardian ")), SIGKILL);
  EXPECT_EQ(one.wait(), 128 + SIGKILL);
  EXPECT_EQ(zero.wait(), 128 + SIGKILL);
  EXPECT_THAT(zero.err(), ContainsRegex("error: node 1 .* was lost: its guardian process was killed by SIGKILL"));
  EXPECT_TRUE(one.is_gone_within());
}

TEST(DdprunNodes, AHostWhoseGuardianDiesTellsTheOthersWhy) {
  const auto port = free_port();
  Job zero(node(fixed(2, 0, port), "echo guardian $PPID; " + kStay));
  Job one(node(fixed(2, 1, port), "echo up; " + kStay));
  ASSERT_TRUE(zero.prints("guardian", 2));
  ASSERT_TRUE(one.prints("up", 2));
  ::kill(static_cast<pid_t>(zero.number_after("guardian ")), SIGKILL);
  EXPECT_EQ(zero.wait(), 128 + SIGKILL);
  EXPECT_EQ(one.wait(), 128 + SIGKILL);
  EXPECT_THAT(one.err(), ContainsRegex("error: node 0, which had the endpoint, was lost: its guardian process was "
                                       "killed by SIGKILL"));
}

TEST(DdprunNodes, TheEndpointsDeathEndsTheOtherOfTwoWithAReason) {
  const auto port = free_port();
  const std::vector<std::string> conf{"--rdzv-conf=join_timeout=8"};
  Job zero(node(fixed(2, 0, port), "echo up; " + kStay, conf)), one(node(fixed(2, 1, port), "echo up; " + kStay, conf));
  ASSERT_TRUE(zero.prints("up", 2));
  ASSERT_TRUE(one.prints("up", 2));
  zero.kill(SIGKILL);
  EXPECT_EQ(one.wait(), 128 + SIGKILL);
  EXPECT_THAT(one.err(), AllOf(HasSubstr("the connection to the endpoint 127.0.0.1:" + port + " is lost"),
                               HasSubstr("error: node 0, which had the endpoint, was lost: its ddprun was killed by "
                                         "SIGKILL\n")));
  EXPECT_TRUE(zero.is_gone_within());
  EXPECT_TRUE(one.is_gone_within());
}

TEST(DdprunNodes, ADeadNodeIsReplacedWhileTheBudgetLasts) {
  const auto port = free_port();
  const auto script = "echo round ${DDPRUN_ROUND_ID##*-}; [ ${DDPRUN_ROUND_ID##*-} = 1 ] || " + kStay;
  Job zero(node(fixed(2, 0, port), script, {"--max-restarts=1"}));
  {
    Job one(node(fixed(2, 1, port), script, {"--max-restarts=1"}));
    ASSERT_TRUE(zero.prints("round 0", 2));
    ASSERT_TRUE(one.prints("round 0", 2));
    one.kill(SIGKILL);
    EXPECT_TRUE(one.is_gone_within());
  }
  Job again(node(fixed(2, 1, port), script, {"--max-restarts=1"}));
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_THAT(again.out(), HasSubstr("round 1\nround 1\n"));
}

TEST(DdprunNodes, AnElasticJobGrowsAndShrinksAtNoCost) {
  const auto port = free_port();
  const auto script = "echo rank $RANK of $WORLD_SIZE restarts $TORCHELASTIC_RESTART_COUNT; " + kStay;
  Job host(node(elastic("1:3", port), script));
  ASSERT_TRUE(host.prints("of 2 restarts 0", 2)) << host.err();  // after the last call, alone
  Job second(node(elastic("1:3", port), script));
  ASSERT_TRUE(second.prints("of 4 restarts 0", 2)) << second.err();  // after another
  Job third(node(elastic("1:3", port), script));
  ASSERT_TRUE(third.prints("of 6 restarts 0", 2)) << third.err();
  Job spare(node(elastic("1:3", port), script));
  ASSERT_TRUE(host.prints("of 6 restarts 0", 2));
  third.kill(SIGKILL);
  ASSERT_TRUE(spare.prints("rank 5 of 6 restarts 0")) << spare.err();
  second.kill(SIGKILL);
  ASSERT_TRUE(spare.prints("rank 3 of 4 restarts 0")) << spare.err();
  spare.kill(SIGKILL);
  ASSERT_TRUE(host.prints("of 2 restarts 0", 4)) << host.err();
  EXPECT_THAT(host.err(), AllOf(HasSubstr("1 more node has come: "),
                                HasSubstr(") was lost: its ddprun was killed by SIGKILL: all nodes "
                                          "start their workers again\n"),
                                Not(HasSubstr("restart "))));
  host.kill(SIGTERM);
  EXPECT_EQ(host.wait(), 143);
  for (const auto* job : {&host, &second, &third, &spare}) EXPECT_TRUE(job->is_gone_within());
}

TEST(DdprunNodes, AnElasticJobGoesOnWithoutANodeButNotWithFewerThanTheMinimum) {
  const auto port = free_port();
  const auto script = "echo rank $RANK of $WORLD_SIZE; " + kStay;
  Job host(node(elastic("2:3", port), script)), second(node(elastic("2:3", port), script)),
      third(node(elastic("2:3", port), script));
  for (auto* job : {&host, &second, &third}) ASSERT_TRUE(job->prints("of 6", 2)) << job->err();
  // Whoever came first serves the endpoint; another one dies.
  auto* served = &host;
  for (auto* job : {&second, &third})
    if (job->err().find("waiting for") != std::string::npos) served = job;
  std::vector<Job*> others;
  for (auto* job : {&host, &second, &third})
    if (job != served) others.push_back(job);
  others[0]->kill(SIGKILL);
  ASSERT_TRUE(served->prints("of 4", 2)) << served->err();
  ASSERT_TRUE(others[1]->prints("of 4", 2)) << others[1]->err();
  others[1]->kill(SIGKILL);
  EXPECT_EQ(served->wait(), 128 + SIGKILL);
  EXPECT_THAT(served->err(), HasSubstr("error: node "));
}

TEST(DdprunNodes, WhatDoesNotFitTogetherIsRefusedOnBothSides) {
  const auto port = free_port();
  Job host(node(dynamic(2, port), "true"));
  ASSERT_TRUE(host.prints("waiting"));
  const struct {
    const char* what;
    std::vector<std::string> meeting;
    const char* why;
  } cases[] = {{"another job", dynamic(2, port, "other"), "the endpoint serves another job than 'other'"},
               {"another number of nodes", dynamic(3, port), "--nnodes=3, the endpoint with --nnodes=2"},
               {"another budget", with(dynamic(2, port), "--max-restarts=3"),
                "--max-restarts=3, the endpoint with --max-restarts=0"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    auto meeting = c.meeting;
    meeting.push_back("--rdzv-conf=is_host=false");
    Job stranger(node(meeting, "true"));
    EXPECT_EQ(stranger.wait(), 77);
    EXPECT_THAT(stranger.err(), AllOf(HasSubstr(c.why), HasSubstr("\nwhere: "), HasSubstr("\ntry:   ")));
  }
  EXPECT_TRUE(host.prints("was refused"));
  Job second(node(dynamic(2, port), "true"));  // the job itself goes on
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_EQ(host.wait(), 0);
}

TEST(DdprunNodes, StrangersOnThePortDisturbNobody) {
  const auto port = free_port();
  Job host(node(dynamic(2, port), "true"));
  ASSERT_TRUE(host.prints("waiting"));
  for (const std::string text :
       {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01hello", "\xff\xff\xff\xff", "garbage garbage\r\n\r\n", ""}) {
    std::uint16_t ignored = 0;
    auto socket = bound_socket(0, ignored);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  Job other(node(dynamic(2, port), "true"));
  EXPECT_EQ(other.wait(), 0) << other.err();
  EXPECT_EQ(host.wait(), 0) << host.err();
}

TEST(DdprunNodes, AnEndpointThatNobodyServesIsTold) {
  const auto port = free_port();
  Job job(node(dynamic(2, port), "true", {"--rdzv-conf=is_host=false,join_timeout=3"}));
  EXPECT_EQ(job.wait(), 77);
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("error: no answer from ddprun at localhost:" + port), HasSubstr("Connection refused"),
                    HasSubstr("the endpoint's addresses: "), HasSubstr("this host's: "), HasSubstr("is_host=true")));
}

TEST(DdprunNodes, AnEndpointThatIsNoDdprunIsTold) {
  std::uint16_t port = 0;
  const auto silent = bound_socket(0, port);
  ASSERT_EQ(::listen(silent.get(), 8), 0);
  Job job(node(dynamic(2, std::to_string(port)), "true", {"--rdzv-conf=is_host=false,join_timeout=2"}));
  EXPECT_EQ(job.wait(), 77);
  EXPECT_THAT(job.err(), HasSubstr("error: no answer from ddprun at localhost:"));
}

// Answers each request with "not found", as a web server would, until its end.
class WebServer {
 public:
  ~WebServer() {
    ::shutdown(listening_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string port() const { return std::to_string(port_); }

 private:
  void serve() const {
    const std::string answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    std::array<char, 4096> request{};
    while (true) {
      const base::UniqueFd visitor(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!visitor) return;
      if (::read(visitor.get(), request.data(), request.size()) > 0)
        static_cast<void>(!::write(visitor.get(), answer.data(), answer.size()));
    }
  }

  static base::UniqueFd listen(std::uint16_t& port) {
    auto socket = bound_socket(0, port);
    ::listen(socket.get(), 8);
    return socket;
  }

  std::uint16_t port_ = 0;
  const base::UniqueFd listening_ = listen(port_);
  std::thread thread_{[this] { serve(); }};
};

TEST(DdprunNodes, AnEndpointThatSpeaksHttpIsToldWithAnotherAdvice) {
  const WebServer server;
  Job job(node(dynamic(2, server.port()), "true", {"--rdzv-conf=is_host=false,join_timeout=6"}));
  EXPECT_EQ(job.wait(), 77);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("what answers there is no ddprun (it speaks HTTP)"),
                               HasSubstr("try:   another port, the same on all nodes; `ss -ltnp` on that host")));
}

TEST(DdprunNodes, ATakenMasterPortIsTold) {
  std::uint16_t port = 0;
  const auto holder = bound_socket(0, port);
  ASSERT_EQ(::listen(holder.get(), 8), 0);
  Job job(node(fixed(2, 0, std::to_string(port)), "true"));
  EXPECT_EQ(job.wait(), 77);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("error: "), HasSubstr(std::to_string(port)), HasSubstr("\ntry:   "),
                               HasSubstr("pid " + std::to_string(::getpid()) + " (")));
}

TEST(DdprunNodes, EndpointsPortThatIsFreedIsServed) {
  std::uint16_t port = 0;
  auto holder = bound_socket(0, port);
  ASSERT_EQ(::listen(holder.get(), 8), 0);
  const timeval patience{kPatience.count(), 0};
  ::setsockopt(holder.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  Job job(node(elastic("1:2", std::to_string(port)), kShow));
  base::UniqueFd client(::accept(holder.get(), nullptr, nullptr));  // it has found the port in use
  holder.reset();
  client.reset();
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("node 0 of 1 rank 0 of 2"));
}

TEST(DdprunNodes, MissingNodesAreCountedAndNamed) {
  const auto port = free_port();
  const std::vector<std::string> conf{"--rdzv-conf=timeout=8"};
  Job two(node(fixed(3, 2, port), "true", conf)), zero(node(fixed(3, 0, port), "true", conf));
  EXPECT_EQ(zero.wait(), 77);
  EXPECT_EQ(two.wait(), 77);
  for (auto* job : {&zero, &two})
    EXPECT_THAT(job->err(), AllOf(HasSubstr("only 2 of 3 nodes came within"), HasSubstr("(node rank 0)"),
                                  HasSubstr("(node rank 2)")));
}

TEST(DdprunNodes, AStopWhileWaitingEndsAtOnce) {
  const auto port = free_port();
  Job host(node(fixed(2, 0, port), "true"));
  ASSERT_TRUE(host.prints("waiting"));
  host.kill(SIGTERM);
  EXPECT_EQ(host.wait(), 143);
  Job client(node(dynamic(2, port), "true", {"--rdzv-conf=is_host=false"}));
  ASSERT_TRUE(client.prints("no answer from"));
  client.kill(SIGTERM);
  EXPECT_EQ(client.wait(), 143);
}

TEST(DdprunNodes, OneNodeKeepsAPortThatIsGiven) {
  const auto port = free_port();
  Job job({"--nnodes=1", "--nproc-per-node=1", "--max-restarts=1", "--master-port=" + port, "sh", "-c",
           "echo $MASTER_ADDR:$MASTER_PORT; exit $((1 - TORCHELASTIC_RESTART_COUNT))"});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "127.0.0.1:" + port + "\n127.0.0.1:" + port + "\n");
}

TEST(DdprunNodes, LogsOfAJobAreInOneFolderAndThoseOfARerunInNewRounds) {
  char folder[] = "/tmp/ddprun_test_XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  for (int run = 0; run < 2; ++run) {
    const auto port = free_port();
    const std::vector<std::string> logs{"--log-dir=" + std::string(folder), "--redirects=3"};
    auto options = logs;
    Job zero(node(fixed(2, 0, port), "echo hello $RANK", options)),
        one(node(fixed(2, 1, port), "echo hello $RANK", options));
    EXPECT_EQ(zero.wait(), 0) << zero.err();
    EXPECT_EQ(one.wait(), 0) << one.err();
  }
  for (int round = 0; round < 2; ++round) {
    std::vector<std::filesystem::path> jobs;  // that have had it
    for (const auto& job : std::filesystem::directory_iterator(folder))
      if (!job.is_symlink() && std::filesystem::exists(job.path() / ("round_" + std::to_string(round))))
        jobs.push_back(job.path());
    ASSERT_EQ(jobs.size(), 1u) << round;
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_TRUE(std::filesystem::exists(jobs.front() / ("round_" + std::to_string(round)) /
                                          ("rank_" + std::to_string(rank)) / "stdout.log"))
          << rank;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ddp::test
