// ddprun on several hosts, each with addresses, a name and processes of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/multihost/multihost.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DdprunHosts : public Multihost {
 protected:
  static std::vector<std::string> ddprun(std::vector<std::string> options, std::vector<std::string> program = {}) {
    options.insert(options.begin(), {built("ddprun"), "--nproc-per-node=2"});
    if (program.empty()) program = {built("store_barrier")};
    options.insert(options.end(), program.begin(), program.end());
    return options;
  }
  static std::vector<std::string> fixed(int nodes, int rank, const std::string& address) {
    return {"--nnodes=" + std::to_string(nodes), "--node-rank=" + std::to_string(rank), "--master-addr=" + address,
            "--master-port=29400"};
  }
  static std::vector<std::string> dynamic(int nodes, const std::string& endpoint) {
    return {"--nnodes=" + std::to_string(nodes), "--rdzv-backend=c10d", "--rdzv-endpoint=" + endpoint, "--rdzv-id=job"};
  }
  // One to `nodes` nodes; a node that is silent for a second is lost, and looks for the others for some seconds.
  static std::vector<std::string> elastic(int nodes, const std::string& endpoint, int nodes_min = 1) {
    auto options = with(dynamic(nodes, endpoint), "--rdzv-conf=heartbeat_timeout=1,join_timeout=8,last_call_timeout=1");
    options[0] = "--nnodes=" + std::to_string(nodes_min) + ":" + std::to_string(nodes);
    return options;
  }
  static std::vector<std::string> with(std::vector<std::string> options, const std::string& one) {
    options.push_back(one);
    return options;
  }
  // Workers that meet and stay, on three hosts, whose options are given by host.
  static std::vector<HostProcess> run_on_all(Hosts& hosts,
                                             const std::function<std::vector<std::string>(int)>& options) {
    std::vector<HostProcess> nodes;
    for (int host = 0; host < 3; ++host)
      nodes.push_back(hosts.run(host, ddprun(options(host), {built("store_barrier"), "stay"})));
    return nodes;
  }
};

TEST_F(DdprunHosts, MeetByNodeRankByEveryKindOfAddress) {
  auto* hosts = make_hosts({.count = 2});
  if (hosts == nullptr) return;
  for (const auto& address : {Hosts::ipv4(0), Hosts::ipv6(0), Hosts::name(0)}) {
    SCOPED_TRACE(address);
    auto one = hosts->run(1, ddprun(fixed(2, 1, address)));
    auto zero = hosts->run(0, ddprun(fixed(2, 0, address)));
    EXPECT_EQ(zero.wait(), 0) << zero.err();
    EXPECT_EQ(one.wait(), 0) << one.err();
    EXPECT_THAT(zero.out(), HasSubstr("rank 1 of 4 met all at " + address + "\n"));
    EXPECT_THAT(one.out(), HasSubstr("rank 3 of 4 met all at " + address + "\n"));
  }
}

TEST_F(DdprunHosts, WhoeverHasTheEndpointsAddressServesIt) {
  auto* hosts = make_hosts({.count = 3, .interfaces = 2});
  if (hosts == nullptr) return;
  // By a name, by an address, and by that of a second interface; each on another host.
  const struct {
    const char* what;
    std::string endpoint;
    int host;
  } cases[] = {{"name", Hosts::name(1), 1},
               {"address", Hosts::ipv4(2), 2},
               {"second interface", Hosts::ipv4(0, 1), 0},
               {"IPv6", "[" + Hosts::ipv6(1) + "]", 1}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    std::vector<HostProcess> nodes;
    for (int host = 0; host < 3; ++host) nodes.push_back(hosts->run(host, ddprun(dynamic(3, c.endpoint + ":29500"))));
    for (int host = 0; host < 3; ++host) {
      EXPECT_EQ(nodes[static_cast<std::size_t>(host)].wait(), 0) << nodes[static_cast<std::size_t>(host)].err();
    }
    EXPECT_THAT(nodes[static_cast<std::size_t>(c.host)].out(), HasSubstr("rank 0 of 6 met all"));
  }
}

TEST_F(DdprunHosts, TheStoreIsWithRankZeroWhoeverServesTheEndpoint) {
  auto* hosts = make_hosts({.count = 3, .interfaces = 2});
  if (hosts == nullptr) return;
  const auto endpoint = Hosts::ipv4(1) + ":29500";
  auto zero = hosts->run(0, ddprun(with(with(dynamic(3, endpoint), "--node-rank=0"), "--port-range=31000-31010")));
  auto two = hosts->run(2, ddprun(with(dynamic(3, endpoint), "--node-rank=1")));
  auto one = hosts->run(1, ddprun(with(dynamic(3, endpoint), "--node-rank=2")));
  for (auto* node : {&zero, &one, &two}) EXPECT_EQ(node->wait(), 0) << node->err();
  EXPECT_THAT(zero.out(), HasSubstr("rank 0 of 6 met all at " + Hosts::ipv4(0) + "\n"));
  EXPECT_THAT(one.out(), HasSubstr("rank 4 of 6 met all at " + Hosts::ipv4(0) + "\n"));
  EXPECT_THAT(one.err(), HasSubstr("store at " + Hosts::ipv4(0) + ":310"));
}

TEST_F(DdprunHosts, ALocalAddressSaysWhereOthersReachThisNode) {
  auto* hosts = make_hosts({.count = 2, .interfaces = 2});
  if (hosts == nullptr) return;
  auto zero = hosts->run(0, ddprun(with(dynamic(2, Hosts::ipv4(0) + ":29500"), "--local-addr=" + Hosts::ipv4(0, 1))));
  auto one = hosts->run(1, ddprun(dynamic(2, Hosts::ipv4(0) + ":29500")));
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_THAT(one.out(), HasSubstr("met all at " + Hosts::ipv4(0, 1) + "\n"));
}

TEST_F(DdprunHosts, AHostThatIsNotInTheJobIsKeptFromTheStore) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto zero = hosts->run(0, ddprun(fixed(2, 0, Hosts::ipv4(0)), {built("store_barrier"), "stay"}));
  auto one = hosts->run(1, ddprun(fixed(2, 1, Hosts::ipv4(0)), {built("store_barrier"), "stay"}));
  ASSERT_TRUE(zero.prints("met all", 2)) << zero.err();
  auto stranger = hosts->run(2, {built("store_barrier")},
                             {"MASTER_ADDR=" + Hosts::ipv4(0), "MASTER_PORT=29400", "RANK=0", "WORLD_SIZE=1"});
  EXPECT_TRUE(zero.prints("the store refused a connection from " + Hosts::ipv4(2)));
  stranger.kill(SIGKILL);
  stranger.wait();
  zero.kill(SIGINT);
  EXPECT_EQ(zero.wait(), 130);
  EXPECT_EQ(one.wait(), 130);
}

TEST_F(DdprunHosts, ASecondJobOnThePortIsToldThatItIsAnother) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  const auto endpoint = Hosts::ipv4(0) + ":29500";
  auto zero = hosts->run(0, ddprun(dynamic(2, endpoint)));
  ASSERT_TRUE(zero.prints("waiting"));
  auto other_job = dynamic(2, endpoint);
  other_job.back() = "--rdzv-id=second";
  auto stranger = hosts->run(2, ddprun(other_job));
  EXPECT_EQ(stranger.wait(), 77);
  EXPECT_THAT(stranger.err(), HasSubstr("the endpoint serves another job than 'second'"));
  auto one = hosts->run(1, ddprun(dynamic(2, endpoint)));
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_EQ(zero.wait(), 0) << zero.err();
}

TEST_F(DdprunHosts, AnEndpointOutOfReachIsTold) {
  auto* hosts = make_hosts({.count = 2});
  if (hosts == nullptr) return;
  auto nobody = hosts->run(1, ddprun(with(dynamic(2, "10.77.0.199:29500"), "--rdzv-conf=join_timeout=2")));
  EXPECT_EQ(nobody.wait(), 77);
  EXPECT_THAT(nobody.err(), AllOf(HasSubstr("error: no answer from ddprun at 10.77.0.199:29500"),
                                  HasSubstr(Hosts::ipv4(1)), HasSubstr("is_host")));
  hosts->cut(0);
  auto silent = hosts->run(1, ddprun(with(dynamic(2, Hosts::name(0) + ":29500"), "--rdzv-conf=join_timeout=2")));
  EXPECT_EQ(silent.wait(), 77);
  EXPECT_THAT(silent.err(), HasSubstr("error: no answer from ddprun at node0:29500"));
  hosts->heal(0);
}

TEST_F(DdprunHosts, ANameThatDoesNotResolveYetIsTriedAgain) {
  auto* hosts = make_hosts({.count = 2});
  if (hosts == nullptr) return;
  auto one = hosts->run(1, ddprun(dynamic(2, "late.example:29500")));
  auto zero = hosts->run(0, ddprun(dynamic(2, "late.example:29500")));  // whose name it turns out to be
  for (auto* node : {&zero, &one}) ASSERT_TRUE(node->prints("the name late.example can't be resolved")) << node->err();
  for (int host = 0; host < 2; ++host)
    ASSERT_EQ(hosts->run(host, {"sh", "-c", "echo " + Hosts::ipv4(0) + " late.example >> /etc/hosts"}).wait(), 0);
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
  EXPECT_THAT(one.out(), HasSubstr("met all"));
}

TEST_F(DdprunHosts, NodeRankZeroServesAnEndpointBehindAnotherAddress) {
  auto* hosts = make_hosts({.count = 2});
  if (hosts == nullptr) return;
  // A service's address that leads to host 0, as Kubernetes has them, known to nobody's interfaces.
  auto map = hosts->run(1, {"ip", "route", "add", "10.99.0.1/32", "via", Hosts::ipv4(0)});
  ASSERT_EQ(map.wait(), 0) << map.err();
  auto zero = hosts->run(0, ddprun(with(dynamic(2, "10.99.0.1:29500"), "--node-rank=0")));
  ASSERT_TRUE(zero.prints("nobody else serves the endpoint")) << zero.err();
  zero.kill(SIGINT);
  EXPECT_EQ(zero.wait(), 130);
}

TEST_F(DdprunHosts, AHostThatFallsSilentStopsTheJob) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto nodes = run_on_all(*hosts, [](int host) {
    return with(fixed(3, host, Hosts::ipv4(0)), "--rdzv-conf=heartbeat_timeout=1,join_timeout=8");
  });
  for (auto& node : nodes) ASSERT_TRUE(node.prints("met all", 2)) << node.err();
  hosts->cut(2);
  for (auto& node : nodes) EXPECT_EQ(node.wait(), 77) << node.err();
  EXPECT_THAT(nodes[0].err(), AllOf(HasSubstr("error: node 2 (host node2) was lost"), HasSubstr("silent")));
  EXPECT_THAT(nodes[1].err(), HasSubstr("error: node 2 (host node2) was lost"));
  EXPECT_THAT(nodes[2].err(), HasSubstr("error: node 0, which had the endpoint, was lost"));
}

TEST_F(DdprunHosts, TheGreaterPartGoesOnWithoutAHostThatFallsSilent) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto nodes = run_on_all(*hosts, [](int) { return elastic(3, Hosts::ipv4(0) + ":29500"); });
  for (auto& node : nodes) ASSERT_TRUE(node.prints("of 6 met all", 2)) << node.err();
  hosts->cut(2);
  for (const int host : {0, 1})
    ASSERT_TRUE(nodes[static_cast<std::size_t>(host)].prints("of 4 met all", 2)) << nodes[0].err();
  EXPECT_EQ(nodes[2].wait(), 77) << "it can't know whether the others go on: " << nodes[2].err();
  EXPECT_THAT(nodes[0].err(), HasSubstr("(host node2) was lost: it has been silent for too long"));
  nodes[0].kill(SIGINT);
  for (const int host : {0, 1}) EXPECT_EQ(nodes[static_cast<std::size_t>(host)].wait(), 130);
}

TEST_F(DdprunHosts, WhereTheEndpointsHostFallsSilentTheOthersGoOnUnderTheNextOne) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto nodes = run_on_all(*hosts, [](int) { return elastic(3, Hosts::ipv4(0) + ":29500", 2); });
  for (auto& node : nodes) ASSERT_TRUE(node.prints("of 6 met all", 2)) << node.err();
  hosts->cut(0);
  for (const int host : {1, 2})
    ASSERT_TRUE(nodes[static_cast<std::size_t>(host)].prints("of 4 met all", 2)) << nodes[1].err() << nodes[2].err();
  EXPECT_EQ(nodes[0].wait(), 77) << "one of three may not go on: " << nodes[0].err();
  nodes[2].kill(SIGINT);
  for (const int host : {1, 2}) EXPECT_EQ(nodes[static_cast<std::size_t>(host)].wait(), 130) << nodes[1].err();
}

TEST_F(DdprunHosts, WhereTheEndpointsHostCrashesTheOthersGoOnUnderTheNextOne) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto nodes = run_on_all(*hosts, [](int) { return elastic(3, Hosts::name(0) + ":29500", 2); });
  for (auto& node : nodes) ASSERT_TRUE(node.prints("of 6 met all", 2)) << node.err();
  hosts->crash(0);
  for (const int host : {1, 2})
    ASSERT_TRUE(nodes[static_cast<std::size_t>(host)].prints("of 4 met all", 2)) << nodes[1].err() << nodes[2].err();
  nodes[2].kill(SIGINT);
  for (const int host : {1, 2}) EXPECT_EQ(nodes[static_cast<std::size_t>(host)].wait(), 130) << nodes[1].err();
}

TEST_F(DdprunHosts, AnAgentThatIsKilledAloneTakesItsWorkersAlongAndTheOthersGoOn) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto nodes = run_on_all(*hosts, [](int) { return elastic(3, Hosts::name(0) + ":29500"); });
  for (auto& node : nodes) ASSERT_TRUE(node.prints("of 6 met all", 2)) << node.err();
  nodes[2].kill(SIGKILL);
  for (const int host : {0, 1})
    ASSERT_TRUE(nodes[static_cast<std::size_t>(host)].prints("of 4 met all", 2)) << nodes[0].err();
  nodes[0].kill(SIGINT);
  for (const int host : {0, 1}) EXPECT_EQ(nodes[static_cast<std::size_t>(host)].wait(), 130) << nodes[0].err();
}

TEST_F(DdprunHosts, ANodeThatIsToldToStopLeavesAndTheOthersGoOn_TheEndpointsHostToo) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto nodes = run_on_all(*hosts, [](int) { return elastic(3, Hosts::ipv4(0) + ":29500"); });
  for (auto& node : nodes) ASSERT_TRUE(node.prints("of 6 met all", 2)) << node.err();
  nodes[2].kill(SIGTERM);
  EXPECT_EQ(nodes[2].wait(), 143) << nodes[2].err();
  EXPECT_THAT(nodes[2].err(), HasSubstr("this node has left the job, which goes on without it"));
  for (const int host : {0, 1})
    ASSERT_TRUE(nodes[static_cast<std::size_t>(host)].prints("of 4 met all", 2)) << nodes[0].err();
  EXPECT_THAT(nodes[0].err(), HasSubstr("SIGTERM to ddprun on host node2, which leaves the job"));
  nodes[0].kill(SIGTERM);
  EXPECT_EQ(nodes[0].wait(), 143) << nodes[0].err();
  ASSERT_TRUE(nodes[1].prints("of 2 met all", 2)) << nodes[1].err();
  for (const int host : {0, 1}) EXPECT_THAT(nodes[static_cast<std::size_t>(host)].err(), Not(HasSubstr("restart ")));
  EXPECT_THAT(nodes[1].err(), HasSubstr("is lost: its node has left the job; this node serves the job"));
  nodes[1].kill(SIGTERM);
  EXPECT_EQ(nodes[1].wait(), 143) << nodes[1].err();
  EXPECT_THAT(nodes[1].err(), Not(HasSubstr("has left the job, which goes on"))) << "nobody is left to go on";
}

TEST_F(DdprunHosts, NodesThatAreAllToldToStopWithinTwoSecondsStopTheJob) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto nodes = run_on_all(*hosts, [](int) { return elastic(3, Hosts::ipv4(0) + ":29500"); });
  for (auto& node : nodes) ASSERT_TRUE(node.prints("of 6 met all", 2)) << node.err();
  for (auto& node : nodes) node.kill(SIGTERM);
  for (auto& node : nodes) EXPECT_EQ(node.wait(), 143) << node.err();
  for (auto& node : nodes) EXPECT_THAT(node.err(), Not(HasSubstr("has left the job")));
}

TEST_F(DdprunHosts, OfTwoNodesTheSecondGoesOnWhenTheAgentAtTheEndpointIsKilled) {
  auto* hosts = make_hosts({.count = 2});
  if (hosts == nullptr) return;
  std::vector<HostProcess> nodes;
  for (int host = 0; host < 2; ++host)
    nodes.push_back(hosts->run(host, ddprun(elastic(2, Hosts::ipv4(0) + ":29500"), {built("store_barrier"), "stay"})));
  for (auto& node : nodes) ASSERT_TRUE(node.prints("of 4 met all", 2)) << node.err();
  nodes[0].kill(SIGKILL);
  ASSERT_TRUE(nodes[1].prints("of 2 met all", 2)) << nodes[1].err();
  EXPECT_THAT(nodes[1].err(), Not(HasSubstr("restart ")));
  nodes[1].kill(SIGINT);
  EXPECT_EQ(nodes[1].wait(), 130) << nodes[1].err();
}

TEST_F(DdprunHosts, AFixedJobWithoutARestartEndsAtOnceOnAllNodesWhenTheEndpointsHostIsLost) {
  auto* hosts = make_hosts({.count = 2});
  if (hosts == nullptr) return;
  std::vector<HostProcess> nodes;
  for (int host = 0; host < 2; ++host)
    nodes.push_back(hosts->run(
        host, ddprun(with(fixed(2, host, Hosts::ipv4(0)), "--rdzv-conf=heartbeat_timeout=1,join_timeout=600"),
                     {built("store_barrier"), "stay"})));
  for (auto& node : nodes) ASSERT_TRUE(node.prints("of 4 met all", 2)) << node.err();
  hosts->crash(0);
  EXPECT_EQ(nodes[1].wait(), 77) << nodes[1].err();
  EXPECT_THAT(nodes[1].err(), HasSubstr("node 0, which had the endpoint, was lost"));
}

TEST_F(DdprunHosts, WhoWasCutOffStopsItsWorkersAndTakesPartAgainOnceThePartitionHeals) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  for (const int cut_off : {0, 2}) {  // the host of the endpoint, and another
    SCOPED_TRACE(cut_off);
    auto nodes = run_on_all(*hosts, [](int) { return elastic(3, Hosts::ipv4(0) + ":29500"); });
    for (auto& node : nodes) ASSERT_TRUE(node.prints("of 6 met all", 2)) << node.err();
    hosts->cut(cut_off);
    for (const int host : {1, 2 - cut_off})
      ASSERT_TRUE(nodes[static_cast<std::size_t>(host)].prints("of 4 met all", 2)) << nodes[1].err();
    auto& alone = nodes[static_cast<std::size_t>(cut_off)];
    ASSERT_TRUE(alone.prints("may go on without the 1 node here")) << alone.err();
    hosts->heal(cut_off);
    for (auto& node : nodes) ASSERT_TRUE(node.prints("of 6 met all", 4)) << alone.err() << nodes[1].err();
    EXPECT_THAT(alone.out(), Not(HasSubstr("of 2 met all")));
    nodes[1].kill(SIGINT);
    for (auto& node : nodes) EXPECT_EQ(node.wait(), 130) << node.err();
  }
}

TEST_F(DdprunHosts, CheckpointsOfWhoWasCutOffReplaceNoneOfTheOthers) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  std::string folder = ::testing::TempDir() + "ddprun_hosts_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto node = [&](int host, int rank) {
    const auto options = elastic(3, Hosts::ipv4(0) + ":29500", 2);
    return hosts->run(
        host, ddprun(with(options, "--node-rank=" + std::to_string(rank)), {built("checkpoint_worker"), folder}));
  };
  // Rank 0, which writes, is with host 2 and not with the endpoint, which stops its workers as soon as it is alone.
  auto zero = node(0, 1), two = node(2, 0);
  ASSERT_TRUE(two.prints("of 4 found that of nobody")) << two.err();
  auto one = node(1, 2);
  ASSERT_TRUE(two.prints("of 6 wrote two")) << two.err();
  hosts->cut(2);
  ASSERT_TRUE(one.prints("of 4 wrote two")) << zero.err() << one.err();  // it took the freed ranks
  ASSERT_TRUE(two.prints("was refused")) << two.err();
  EXPECT_THAT(two.out(), HasSubstr("was superseded: the newest is "));
  hosts->heal(2);
  const auto& text = one.out();
  const auto round_of_the_two = text.substr(0, text.find(" of 4 found"));  // "round 2"
  ASSERT_TRUE(one.prints("of 6 found that of " + round_of_the_two)) << one.err() << two.err();
  one.kill(SIGINT);
  for (auto* agent : {&zero, &one, &two}) EXPECT_EQ(agent->wait(), 130) << agent->err();
  std::filesystem::remove_all(folder);
}

TEST_F(DdprunHosts, AJobGrowsFromTwoToThreeAndShrinksToOne) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  const auto node = [&](int host) {
    return hosts->run(host, ddprun(elastic(3, Hosts::ipv4(0) + ":29500"), {built("store_barrier"), "stay"}));
  };
  auto zero = node(0), one = node(1);
  for (auto* agent : {&zero, &one}) ASSERT_TRUE(agent->prints("of 4 met all", 2)) << agent->err();
  auto two = node(2);
  for (auto* agent : {&zero, &one, &two}) ASSERT_TRUE(agent->prints("of 6 met all", 2)) << agent->err();
  for (auto* agent : {&one, &two}) agent->kill(SIGKILL);
  ASSERT_TRUE(zero.prints("of 2 met all", 2)) << zero.err();
  EXPECT_THAT(zero.err(),
              AllOf(HasSubstr("(host node1) was lost: its ddprun was killed by SIGKILL"),
                    HasSubstr("(host node2) was lost: its ddprun was killed by SIGKILL"), Not(HasSubstr("restart "))));
  zero.kill(SIGINT);
  EXPECT_EQ(zero.wait(), 130) << zero.err();
}

TEST_F(DdprunHosts, ASpareTakesOverFromAHostThatFallsSilent) {
  auto* hosts = make_hosts({.count = 4});
  if (hosts == nullptr) return;
  std::vector<HostProcess> nodes;
  const auto start = [&](int host) {
    nodes.push_back(
        hosts->run(host, ddprun(elastic(3, Hosts::ipv4(0) + ":29500", 3), {built("store_barrier"), "stay"})));
  };
  for (int host = 0; host < 3; ++host) start(host);
  for (auto& node : nodes) ASSERT_TRUE(node.prints("of 6 met all", 2)) << node.err();
  start(3);
  ASSERT_TRUE(nodes[3].prints("this one is a spare, and waits")) << nodes[3].err();
  const bool is_last = nodes[2].out().find("rank 5 of 6") != std::string::npos;
  const int lost = is_last ? 2 : 1;  // whichever host has ranks 4 and 5
  hosts->cut(lost);
  ASSERT_TRUE(nodes[3].prints("of 6 met all", 2)) << nodes[3].err() << nodes[0].err();
  EXPECT_THAT(nodes[3].out(), AllOf(HasSubstr("rank 4 of 6"), HasSubstr("rank 5 of 6")));
  EXPECT_TRUE(nodes[0].prints("(host node" + std::to_string(lost) + ") was lost")) << nodes[0].err();
  EXPECT_THAT(nodes[0].err(), Not(HasSubstr("restart ")));
  EXPECT_EQ(nodes[static_cast<std::size_t>(lost)].wait(), 77);
  nodes[0].kill(SIGINT);
  for (const int host : {0, 3 - lost, 3}) EXPECT_EQ(nodes[static_cast<std::size_t>(host)].wait(), 130);
}

TEST_F(DdprunHosts, ADaemonThatIsKilledAndStartedAgainDisturbsNoWorker) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  const std::vector<std::string> program{built("ddp-rendezvous"), "--port=29400", "--heartbeat-timeout=1"};
  auto daemon = hosts->run(0, program);
  ASSERT_TRUE(daemon.prints("membership listens")) << daemon.err();
  const auto node = [&](int host) {
    return hosts->run(host,
                      ddprun(with(elastic(2, Hosts::name(0), 2), "--max-restarts=1"),
                             {"sh", "-c", "echo worker $$ of round ${DDPRUN_ROUND_ID##*-}; exec tail -f /dev/null"}));
  };
  auto one = node(1), two = node(2);
  for (auto* agent : {&one, &two}) ASSERT_TRUE(agent->prints("of round 0", 2)) << agent->err();
  daemon.kill(SIGKILL);
  EXPECT_EQ(daemon.wait(), 1000 + SIGKILL);
  for (auto* agent : {&one, &two}) ASSERT_TRUE(agent->prints("and the workers go on")) << agent->err();
  auto again = hosts->run(0, program);
  for (auto* agent : {&one, &two}) {
    ASSERT_TRUE(agent->prints("connected to the job again")) << agent->err();
    EXPECT_THAT(agent->out(), Not(HasSubstr("of round 1")));
  }
  const auto& text = one.out();
  const auto begin = text.find("worker ") + 7;
  ASSERT_EQ(hosts->run(1, {"kill", "-9", text.substr(begin, text.find(' ', begin) - begin)}).wait(), 0)
      << "none of them had ended";
  for (auto* agent : {&one, &two}) {
    ASSERT_TRUE(agent->prints("of round 1", 2)) << agent->err() << again.err();
    EXPECT_THAT(agent->err(), HasSubstr("was killed by SIGKILL"));
  }
  one.kill(SIGINT);
  for (auto* agent : {&one, &two}) EXPECT_EQ(agent->wait(), 130) << agent->err();
}

TEST_F(DdprunHosts, WithADaemonOfItsOwnAJobOutlivesAnyOfItsHosts) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto daemon = hosts->run(0, {built("ddp-rendezvous"), "--port=29400", "--heartbeat-timeout=1"});
  ASSERT_TRUE(daemon.prints("membership listens")) << daemon.err();
  const auto node = [&](int host) {
    return hosts->run(host,
                      ddprun(with(elastic(2, Hosts::name(0)), "--orphan-limit=1"), {built("store_barrier"), "stay"}));
  };
  auto one = node(1), two = node(2);
  ASSERT_TRUE(one.prints("of 4 met all", 2)) << one.err();
  ASSERT_TRUE(two.prints("of 4 met all", 2)) << two.err();
  const bool one_is_first = one.out().find("rank 0 ") != std::string::npos;
  hosts->cut(one_is_first ? 1 : 2);
  auto &cut_off = one_is_first ? one : two, &other = one_is_first ? two : one;
  ASSERT_TRUE(other.prints("of 2 met all", 2)) << other.err();
  EXPECT_EQ(cut_off.wait(), 77) << cut_off.err();
  other.kill(SIGINT);
  EXPECT_EQ(other.wait(), 130) << other.err();
}

// By which a ddprun proves later that one before it has ended. They are written beside the workers' start.
bool are_records_written(const std::filesystem::path& below, std::ptrdiff_t count) {
  using Entries = std::filesystem::recursive_directory_iterator;
  const auto is_record = [](const auto& entry) { return entry.path().filename() == "node.json"; };
  return becomes_true([&] { return std::count_if(Entries(below), Entries(), is_record) == count; });
}

// Nobody says that they have ended but the ddpruns that come in their place: the kernel has told these.
TEST_F(DdprunHosts, OneOfThreeGoesOnOnceTheOthersWereKilledWithAllTheirProcessesAndReplaced) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  for (const int survivor : {0, 2}) {  // the host of the endpoint, and another
    SCOPED_TRACE(survivor);
    const ScratchDirectory disks;
    const auto node = [&](int host) {
      const auto disk = disks.path() / std::to_string(host);
      std::filesystem::create_directory(disk);
      auto options = elastic(3, Hosts::name(0) + ":29500");
      options[4] = "--rdzv-conf=heartbeat_timeout=1,join_timeout=600,last_call_timeout=1";
      return hosts->run(host, ddprun(options, {built("store_barrier"), "stay"}), {"TMPDIR=" + disk.string()});
    };
    std::vector<HostProcess> nodes, replacements;
    for (int host = 0; host < 3; ++host) nodes.push_back(node(host));
    for (auto& each : nodes) ASSERT_TRUE(each.prints("of 6 met all", 2)) << each.err();
    ASSERT_TRUE(are_records_written(disks.path(), 3));
    for (int host = 0; host < 3; ++host) {
      if (host == survivor) continue;
      hosts->run(host, {"kill", "-9", "-1"}).wait();
      EXPECT_EQ(nodes[static_cast<std::size_t>(host)].wait(), 1000 + SIGKILL);
    }
    for (int host = 0; host < 3; ++host)
      if (host != survivor) replacements.push_back(node(host));
    auto& alone = nodes[static_cast<std::size_t>(survivor)];
    ASSERT_TRUE(alone.prints("of 6 met all", 4)) << alone.err() << replacements[0].err();
    EXPECT_THAT(alone.err(), Not(HasSubstr("restart ")));
    alone.kill(SIGINT);
    EXPECT_EQ(alone.wait(), 130) << alone.err();
    for (auto& each : replacements) EXPECT_EQ(each.wait(), 130) << each.err();
  }
}

TEST_F(DdprunHosts, AHostThatCrashesIsReplaced) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  const auto node = [&](int host, int rank) {
    return hosts->run(host, ddprun(with(fixed(2, rank, Hosts::name(0)), "--max-restarts=1"),
                                   {"sh", "-c",
                                    "[ ${DDPRUN_ROUND_ID##*-} = 0 ] && exec " + built("store_barrier") +
                                        " stay; exec " + built("store_barrier")}));
  };
  auto zero = node(0, 0), one = node(1, 1);
  ASSERT_TRUE(zero.prints("met all", 2)) << zero.err();
  hosts->crash(1);
  auto two = node(2, 1);
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(two.wait(), 0) << two.err();
  EXPECT_THAT(zero.err(), HasSubstr("node 1 (host node1) was lost"));
  EXPECT_THAT(two.out(), HasSubstr("rank 3 of 4 met all"));
}

TEST_F(DdprunHosts, AFixedNumberOfNodesGoesOnAfterACutOfTheEndpointsHost) {
  auto* hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  auto nodes = run_on_all(*hosts, [](int host) {
    return with(with(fixed(3, host, Hosts::ipv4(0)), "--rdzv-conf=heartbeat_timeout=1,join_timeout=30"),
                "--max-restarts=2");
  });
  for (auto& node : nodes) ASSERT_TRUE(node.prints("of 6 met all", 2)) << node.err();
  hosts->cut(0);
  ASSERT_TRUE(nodes[0].prints("waiting for 2 more nodes")) << nodes[0].err();
  ASSERT_TRUE(nodes[1].prints("waiting for 1 more node")) << nodes[1].err();
  hosts->heal(0);
  for (auto& node : nodes) ASSERT_TRUE(node.prints("of 6 met all", 4)) << node.err();
  nodes[1].kill(SIGINT);
  for (auto& node : nodes) EXPECT_EQ(node.wait(), 130) << node.err();
}

// Another ddprun is started at the endpoint's address, with the same command line.
TEST_F(DdprunHosts, TheEndpointsHostIsReplaced) {
  const struct {
    const char* name;
    int hosts;
    std::function<std::vector<std::string>(int host)> options;
  } setups[] = {
      {"two fixed, by address", 2, [](int) { return elastic(2, Hosts::ipv4(0) + ":29500", 2); }},
      {"two fixed, by name and node rank", 2, [](int host) { return fixed(2, host, Hosts::name(0)); }},
      {"three fixed, by address and node rank", 3, [](int host) { return fixed(3, host, Hosts::ipv4(0)); }},
      {"one to three, by address", 3, [](int) { return elastic(3, Hosts::ipv4(0) + ":29500"); }},
      {"two to three, by name", 3, [](int) { return elastic(3, Hosts::name(0) + ":29500", 2); }},
  };
  for (const auto& setup : setups) {
    for (const bool is_agent_alone : {true, false}) {
      SCOPED_TRACE(setup.name + std::string(is_agent_alone ? ", its agent" : ", all its processes"));
      auto* hosts = make_hosts({.count = setup.hosts});
      if (hosts == nullptr) return;
      const auto start = [&](int host) {
        return hosts->run(host, ddprun(with(with(setup.options(host), "--max-restarts=2"), "--log-level=debug"),
                                       {built("store_barrier"), "stay"}));
      };
      std::vector<HostProcess> nodes;
      for (int host = 0; host < setup.hosts; ++host) nodes.push_back(start(host));
      const auto all_met = "of " + std::to_string(2 * setup.hosts) + " met all";
      for (auto& node : nodes) ASSERT_TRUE(node.prints(all_met, 2)) << node.err();
      for (int host = 1; host < setup.hosts; ++host)  // without the endpoint a round that nobody knows to be whole ends
        ASSERT_TRUE(nodes[static_cast<std::size_t>(host)].prints("debug round_established "));
      if (is_agent_alone)
        nodes[0].kill(SIGKILL);
      else
        hosts->run(0, {"kill", "-9", "-1"}).wait();
      EXPECT_EQ(nodes[0].wait(), 1000 + SIGKILL);
      auto replacement = start(0);
      ASSERT_TRUE(replacement.prints(all_met, 2)) << replacement.err() << "--- node 1:\n" << nodes[1].err();
      for (int host = 1; host < setup.hosts; ++host) {
        auto& node = nodes[static_cast<std::size_t>(host)];
        ASSERT_TRUE(node.prints(all_met, 4)) << node.err();
      }
      nodes[1].kill(SIGINT);
      EXPECT_EQ(replacement.wait(), 130) << replacement.err();
      for (int host = 1; host < setup.hosts; ++host) EXPECT_EQ(nodes[static_cast<std::size_t>(host)].wait(), 130);
    }
  }
}

}  // namespace
}  // namespace ddp::test
