// The cluster that the other tests here stand on: what it runs, what it says of it, and that nothing is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "tests/integration/job.hpp"
#include "tests/slurm/on_cluster.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class ClusterTest : public OnCluster {};

TEST_F(ClusterTest, AStepRunsOnEveryNodeAndKnowsWhereItIs) {
  Cluster* const cluster = make_cluster({.nodes = 4});
  if (cluster == nullptr) return;
  const std::string say = "echo $SLURMD_NODENAME is $SLURM_NODEID of $SLURM_NNODES";
  auto srun = cluster->run({"srun", "--nodes=4", "sh", "-c", say});
  EXPECT_EQ(srun.wait(), 0) << srun.err();
  for (int node = 0; node < 4; ++node) {
    EXPECT_THAT(srun.out(), HasSubstr(Cluster::node(node) + " is " + std::to_string(node) + " of 4\n"));
  }
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(ClusterTest, TellsHowABatchJobEnded) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto good = cluster->submit({"--wrap=echo good $SLURM_JOB_ID"});
  const auto bad = cluster->submit({"--wrap=exit 3"});
  EXPECT_EQ(cluster->wait(good), (Cluster::End{"COMPLETED", "0:0"}));
  EXPECT_EQ(cluster->wait(bad), (Cluster::End{"FAILED", "3:0"}));
  EXPECT_TRUE(cluster->prints(good, "good " + good + "\n")) << cluster->output(good);
  EXPECT_TRUE(becomes_true([&] { return cluster->field(bad, "JobState") == "FAILED"; }))  // COMPLETING at first
      << cluster->field(bad, "JobState");
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(ClusterTest, NamesWhatIsLeft) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  auto sleeper = cluster->run({"setsid", "tail", "-f", "/dev/null"});
  const auto left = [&] { return cluster->survivors(std::chrono::milliseconds(0)); };
  EXPECT_TRUE(becomes_true([&] { return left().find("tail -f /dev/null") != std::string::npos; })) << left();
  sleeper.kill(SIGKILL);
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(ClusterTest, ANodeThatCrashesTakesItsTasksAlongAndNoOthers) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  auto srun = cluster->run({"srun", "--nodes=2", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "sh", "-c",
                            "echo here; exec tail -f /dev/null"});
  ASSERT_TRUE(srun.prints("here", 2)) << srun.err();
  const auto tasks_of = [&](int node) {
    int count = 0;
    for (const auto& process : cluster->processes()) {
      count += process.has("SLURMD_NODENAME=" + Cluster::node(node)) && process.command_line == "tail -f /dev/null ";
    }
    return count;
  };
  // Each says "here" before its exec.
  EXPECT_TRUE(becomes_true([&] { return tasks_of(0) == 1 && tasks_of(1) == 1; }));
  EXPECT_THAT(cluster->processes_of(1), SizeIs(3)) << "task, slurmstepd, slurmd";
  cluster->crash(1);
  EXPECT_TRUE(becomes_true([&] { return tasks_of(1) == 0; }));
  EXPECT_EQ(tasks_of(0), 1);
  cluster->ask({"scancel", "1"});
  EXPECT_EQ(cluster->survivors(), "");
}

}  // namespace
}  // namespace ddp::test
