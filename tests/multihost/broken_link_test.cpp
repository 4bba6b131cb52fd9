// Two hosts of a job can't reach each other any more, and both reach the endpoint, which is on a third host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/multihost/multihost.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class BrokenLink : public Multihost {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Two workers on each of three hosts, which work together. Then hosts 1 and 2 do not reach each other any more.
  static std::vector<HostProcess> run_and_cut(Hosts& hosts, const std::string& nodes,
                                              const std::vector<std::string>& program, const std::string& at_work) {
    std::vector<HostProcess> out;
    for (int host = 0; host < 3; ++host) {
      std::vector<std::string> argv{built("ddprun"), "--nproc-per-node=2", "--nnodes=" + nodes, "--rdzv-backend=c10d"};
      argv.insert(argv.end(), {"--rdzv-endpoint=" + Hosts::ipv4(0) + ":29500", "--rdzv-id=job",
                               "--rdzv-conf=last_call_timeout=1", "--log-level=info"});
      argv.insert(argv.end(), program.begin(), program.end());
      out.push_back(hosts.run(host, argv));
    }
    for (auto& node : out) EXPECT_TRUE(node.prints(at_work, 2)) << node.err();
    hosts.cut_way(1, 2);
    hosts.cut_way(2, 1);
    return out;
  }

  // A collective waits for 3 s.
  std::vector<std::string> elastic_program() const { return {built("elastic_worker"), folder_, "3000"}; }

  // Of the workers that began this round.
  static std::set<std::string> pids_of(const std::string& text, int round) {
    std::set<std::string> pids;
    const auto line = "begin round=" + std::to_string(round) + " ";
    for (auto at = text.find(line); at != std::string::npos; at = text.find(line, at + 1)) {
      const auto pid = text.find("pid=", at);
      pids.insert(text.substr(pid, text.find(' ', pid) - pid));
    }
    return pids;
  }

  std::string folder_ = ::testing::TempDir() + "broken_link_XXXXXX";
};

TEST_F(BrokenLink, ElasticJobGoesOnWithoutOneOfTheTwoHostsUntilTheLinkWorksAndKillsNobody) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto nodes = run_and_cut(*hosts, "2:3", elastic_program(), " size=6 ");
  for (const std::size_t host : {0U, 1U}) {
    auto& node = nodes[host];
    ASSERT_TRUE(node.prints(" size=4 ", 2)) << node.out() << node.err();
    EXPECT_EQ(pids_of(node.out(), 1), pids_of(node.out(), 0));
  }
  EXPECT_THAT(nodes[0].err(), AllOf(HasSubstr("hosts node1 and node2 can't reach each other"),
                                    HasSubstr("host node2 is left out"), Not(HasSubstr("restart "))));
  EXPECT_TRUE(nodes[2].prints("worker_left ", 2)) << nodes[2].err();
  hosts->heal_way(1, 2);
  hosts->heal_way(2, 1);
  for (auto& node : nodes) ASSERT_TRUE(node.prints(" size=6 ", 4)) << node.out() << node.err();
  for (const auto& node : nodes) EXPECT_THAT(node.err(), Not(HasSubstr("kill_worker")));
  nodes[0].kill(SIGINT);
  for (auto& node : nodes) EXPECT_EQ(node.wait(), 130) << node.err();
}

TEST_F(BrokenLink, JobOfAFixedNumberEndsWithAVerdictThatNamesBothHosts) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto nodes = run_and_cut(*hosts, "3", elastic_program(), " size=6 ");
  for (auto& node : nodes) {
    EXPECT_EQ(node.wait(), 77) << node.err();
    EXPECT_THAT(node.err(), HasSubstr("error: hosts node1 and node2 can't reach each other"));
  }
}

// Nothing but the silence of the other host ends the wait.
TEST_F(BrokenLink, WorkersWithALongTimeoutAreStartedAgainWithoutOneOfTheTwoHosts) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto nodes = run_and_cut(*hosts, "2:3", {built("should_stop_worker")}, "up round=0 ");
  for (const std::size_t host : {0U, 1U}) {
    auto& node = nodes[host];
    ASSERT_TRUE(node.prints("up round=1 ", 2)) << node.out() << node.err() << nodes[2].err();
  }
  EXPECT_THAT(nodes[0].err(), AllOf(HasSubstr("hosts node1 and node2 can't reach each other"),
                                    HasSubstr("host node2 is left out"), Not(HasSubstr("restart "))));
  nodes[0].kill(SIGINT);
  for (auto& node : nodes) EXPECT_THAT(node.wait(), AnyOf(75, 130)) << node.err();
}

}  // namespace
}  // namespace ddp::test
