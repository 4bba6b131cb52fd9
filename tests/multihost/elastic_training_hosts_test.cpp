// Training with all of its state in a Checkpointer, on three hosts of two ranks each: hosts are lost in the middle, and
// the result has the bits of a run that lost none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/elastic_training_job.hpp"
#include "tests/integration/job.hpp"
#include "tests/multihost/multihost.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr int kHosts = 3, kRanks = 6;
const std::string kHold = "hold_13";  // in the middle of an epoch, which has four steps

class ElasticTrainingHosts : public Multihost {
 protected:
  static HostProcess start(Hosts& hosts, const TrainingJob& run, int host, int node) {
    std::vector<std::string> argv = run.arguments({built("ddprun"), "--nnodes=3", "--node-rank=" + std::to_string(node),
                                                   "--master-addr=" + Hosts::ipv4(0), "--master-port=29400",
                                                   "--nproc-per-node=2", "--max-restarts=1"});
    return hosts.run(host, argv);
  }

  // On hosts 0, 1 and 2.
  static std::vector<HostProcess> start_all(Hosts& hosts, const TrainingJob& run) {
    std::vector<HostProcess> nodes;
    for (int host = 0; host < kHosts; ++host) nodes.push_back(start(hosts, run, host, host));
    return nodes;
  }

  static std::string printed(const std::vector<HostProcess>& nodes) {
    std::string text;
    for (const HostProcess& node : nodes) text += node.out();
    return text;
  }

  static std::string errors(const std::vector<HostProcess>& nodes) {
    std::string text;
    for (const HostProcess& node : nodes) text += node.err();
    return text;
  }

  // Waits for success. Returns the bits of the parameters, which are the same on all ranks.
  static std::set<std::string> bits_of(std::vector<HostProcess>& nodes) {
    for (HostProcess& node : nodes) EXPECT_EQ(node.wait(), 0) << node.err();
    const std::set<std::string> bits = at_the_end(printed(nodes), "bits");
    EXPECT_THAT(bits, SizeIs(1)) << printed(nodes);
    return bits;
  }

  static std::set<std::string> bits_of_undisturbed(Hosts& hosts, const std::string& method) {
    const TrainingJob run(method, "memory");
    std::vector<HostProcess> nodes = start_all(hosts, run);
    return bits_of(nodes);
  }

  // Every rank goes on from a committed step, with its own state.
  static void expect_loaded(const std::string& text, int round, std::uint64_t committed, bool is_from_memory) {
    const std::map<int, double> steps = of_ranks(text, round, "step");
    EXPECT_THAT(steps, AllOf(SizeIs(kRanks), Each(Pair(::testing::_, ::testing::Ge(committed))))) << text;
    EXPECT_THAT(of_ranks(text, round, "own"), Each(Pair(::testing::_, 1)));
    EXPECT_THAT(of_ranks(text, round, "memory"), Each(Pair(::testing::_, is_from_memory ? 1 : 0)));
  }
};

TEST_F(ElasticTrainingHosts, IfAllHostsCrashTheResumedRunEndsInTheSameBits) {
  for (const std::string method : {"power_sgd", "zero2"}) {
    SCOPED_TRACE(method);
    const TrainingJob run(method, "disk");
    Hosts* hosts = make_hosts({.count = kHosts});
    if (hosts == nullptr) return;
    const std::set<std::string> undisturbed = bits_of_undisturbed(*hosts, method);
    run.make(kHold);
    {
      std::vector<HostProcess> nodes = start_all(*hosts, run);
      ASSERT_TRUE(nodes[0].prints("holds ;")) << errors(nodes);
      for (int host = 0; host < kHosts; ++host) hosts->crash(host);
    }
    const std::uint64_t committed = run.last_commit(0);
    EXPECT_GE(committed, 12U);
    run.remove(kHold);

    hosts = make_hosts({.count = kHosts});
    std::vector<HostProcess> nodes = start_all(*hosts, run);
    EXPECT_EQ(bits_of(nodes), undisturbed) << errors(nodes);
    expect_loaded(printed(nodes), 0, committed, false);
    expect_each_sample_once(run, kSteps * kRanks * kBatch);
  }
}

TEST_F(ElasticTrainingHosts, AHostWhoseRanksAreAllKilledTakesItsStateFromTheMemoryOfOtherHosts) {
  Hosts* const hosts = make_hosts({.count = kHosts});
  if (hosts == nullptr) return;
  const TrainingJob run("zero2", "memory");
  run.make(kHold);
  std::vector<HostProcess> nodes = start_all(*hosts, run);
  ASSERT_TRUE(nodes[0].prints("holds ;")) << errors(nodes);
  ASSERT_TRUE(nodes[1].prints("begin round=0", 2)) << errors(nodes);
  std::vector<std::string> kill{"kill", "-9"};
  const auto before = of_ranks(nodes[1].out(), 0, "pid");
  ASSERT_THAT(before, SizeIs(2));
  for (const auto& [rank, pid] : before) kill.push_back(std::to_string(static_cast<long>(pid)));
  HostProcess killer = hosts->run(1, kill);
  EXPECT_EQ(killer.wait(), 0) << killer.err();
  const std::uint64_t committed = run.last_commit(0);
  run.remove(kHold);
  const std::set<std::string> bits = bits_of(nodes);
  expect_loaded(printed(nodes), 1, committed, true);
  for (const auto& [rank, pid] : of_ranks(nodes[1].out(), 1, "pid")) EXPECT_NE(pid, before.at(rank)) << rank;
  for (const int other : {0, 2}) {
    const std::string& text = nodes[static_cast<std::size_t>(other)].out();
    EXPECT_EQ(of_ranks(text, 1, "pid"), of_ranks(text, 0, "pid")) << "they live on";
  }
  expect_each_sample_once(run, kSteps * kRanks * kBatch);
  EXPECT_EQ(bits, bits_of_undisturbed(*hosts, "zero2"));
}

TEST_F(ElasticTrainingHosts, AHostThatCrashesIsReplacedByOneThatTakesItsStateFromTheMemoryOfOthers) {
  for (const std::string method : {"power_sgd", "zero2"}) {
    SCOPED_TRACE(method);
    Hosts* const hosts = make_hosts({.count = kHosts + 1});
    if (hosts == nullptr) return;
    const TrainingJob run(method, "memory");
    run.make(kHold);
    std::vector<HostProcess> nodes;
    nodes.push_back(start(*hosts, run, 0, 0));
    nodes.push_back(start(*hosts, run, 2, 2));
    const HostProcess lost = start(*hosts, run, 1, 1);
    ASSERT_TRUE(nodes[0].prints("holds ;")) << errors(nodes);
    hosts->crash(1);
    const std::uint64_t committed = run.last_commit(0);
    nodes.push_back(start(*hosts, run, kHosts, 1));
    run.remove(kHold);
    const std::set<std::string> bits = bits_of(nodes);
    expect_loaded(printed(nodes), 1, committed, true);
    expect_each_sample_once(run, kSteps * kRanks * kBatch);

    const TrainingJob undisturbed(method, "memory");
    std::vector<HostProcess> others;
    for (const int host : {0, 2}) others.push_back(start(*hosts, undisturbed, host, host));
    others.push_back(start(*hosts, undisturbed, kHosts, 1));
    EXPECT_EQ(bits_of(others), bits);
  }
}

}  // namespace
}  // namespace ddp::test
