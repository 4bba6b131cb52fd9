// Every batch script of slurm/ does what it says, on a real Slurm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/integration/job.hpp"
#include "tests/slurm/on_cluster.hpp"
#include "tests/text.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string script(const std::string& name) { return std::string(DDP_TEST_SOURCE_DIR) + "/slurm/" + name + ".sbatch"; }

class SlurmScripts : public OnCluster {};

TEST_F(SlurmScripts, OneNode) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = cluster->submit({script("one_node")});
  EXPECT_EQ(cluster->wait(job), kCompleted);
  EXPECT_THAT(cluster->output(job), AllOf(HasSubstr("2 workers, batch 8"), HasSubstr("test accuracy 9")));
  EXPECT_TRUE(has_checkpoint(*cluster, "checkpoints_" + job));
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(SlurmScripts, SeveralNodes) {
  Cluster* const cluster = make_cluster({.nodes = 4});
  if (cluster == nullptr) return;
  const auto two = cluster->submit({script("several_nodes")});
  const auto four = cluster->submit({"--nodes=4", script("several_nodes"), "--epochs=2"});
  EXPECT_EQ(cluster->wait(two), kCompleted);
  EXPECT_EQ(cluster->wait(four), kCompleted);
  EXPECT_THAT(cluster->output(two), AllOf(HasSubstr("4 workers, batch 8"), HasSubstr("test accuracy 9")));
  EXPECT_THAT(cluster->output(four), AllOf(HasSubstr("8 workers, batch 8"), HasSubstr("epoch 2/2")));
  EXPECT_TRUE(has_checkpoint(*cluster, "checkpoints_" + two));
  EXPECT_TRUE(has_checkpoint(*cluster, "checkpoints_" + four));
  EXPECT_EQ(cluster->survivors(), "");
}

// Also where the names of nodes are Slurm's alone.
TEST_F(SlurmScripts, ClassicTrainsOnTwoNodesWithOneProcessEach) {
  for (const bool names_resolve : {true, false}) {
    SCOPED_TRACE(names_resolve);
    Cluster* const cluster = make_cluster({.names_resolve = names_resolve});
    if (cluster == nullptr) return;
    const auto job = cluster->submit({script("classic")});
    EXPECT_EQ(cluster->wait(job), kCompleted);
    EXPECT_THAT(cluster->output(job), HasSubstr("2 workers, batch 8 per worker: 28 batches per rank and epoch"));
    EXPECT_THAT(cluster->output(job), AllOf(HasSubstr("epoch 30/30"), HasSubstr("test accuracy 9")));
    EXPECT_EQ(cluster->survivors(), "");
  }
}

// Two early warnings, as near the limit of time, and the third run comes to the end.
TEST_F(SlurmScripts, RequeueGoesOnFromTheCheckpointUntilAllIsDone) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  constexpr const char* kEpochs = "--epochs=500";
  const auto job = cluster->submit({script("requeue"), kEpochs});
  ASSERT_TRUE(becomes_true([&] { return has_checkpoint(*cluster, "checkpoints_" + job); })) << cluster->output(job);
  cluster->ask({"scancel", "--batch", "--signal=USR1", job});
  ASSERT_TRUE(cluster->prints(job, "resumed after step ")) << cluster->output(job);
  cluster->ask({"scancel", "--batch", "--signal=USR1", job});
  ASSERT_TRUE(cluster->prints(job, "resumed after step ", 2)) << cluster->output(job);
  EXPECT_TRUE(becomes_true([&] { return cluster->field(job, "JobState") == "COMPLETED"; }, std::chrono::seconds(150)));
  EXPECT_EQ(occurrences(cluster->output(job), "back into the queue"), 2);
  EXPECT_EQ(occurrences(cluster->output(job), "stopped after step "), 2);
  EXPECT_THAT(cluster->output(job), HasSubstr("test accuracy 9"));
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(SlurmScripts, ElasticReplacesALostNodeByTheSpareAndGoesOnSmallerAfterTheNext) {
  Cluster* const cluster = make_cluster({.nodes = 4});
  if (cluster == nullptr) return;
  const auto job = cluster->submit({script("elastic"), "--epochs=1000000"});
  ASSERT_TRUE(becomes_true([&] { return has_checkpoint(*cluster, "checkpoints_" + job); })) << cluster->output(job);
  ASSERT_TRUE(cluster->prints(job, "3 workers, batch 8")) << cluster->output(job);
  // The node of a rank, but never the first, where the batch script runs.
  const auto node_of_a_worker = [&] {
    for (int node = 3; node > 0; --node) {
      for (const auto& process : cluster->processes()) {
        const bool is_worker = process.command_line.starts_with("train_breast_cancer");
        if (is_worker && process.has("SLURMD_NODENAME=" + Cluster::node(node))) return node;
      }
    }
    return 0;
  };
  ASSERT_GT(node_of_a_worker(), 0);
  cluster->crash(node_of_a_worker());
  ASSERT_TRUE(cluster->prints(job, "3 workers, batch 8", 2)) << cluster->output(job);
  ASSERT_GT(node_of_a_worker(), 0);
  cluster->crash(node_of_a_worker());
  ASSERT_TRUE(cluster->prints(job, "2 workers, batch 8")) << cluster->output(job);
  // Slurm finds out later, and leaves the others alone.
  const auto are_down = [&] { return cluster->ask({"sinfo", "--noheader", "--states=down", "--format=%D"}) == "2\n"; };
  EXPECT_TRUE(becomes_true(are_down, std::chrono::seconds(60))) << cluster->ask({"sinfo"});
  EXPECT_EQ(cluster->field(job, "JobState"), "RUNNING");
  EXPECT_EQ(occurrences(cluster->output(job), "resumed after step "), 2) << cluster->output(job);
  cluster->ask({"scancel", job});
  EXPECT_EQ(cluster->survivors(), "");
  EXPECT_THAT(cluster->output(job), HasSubstr("stopped after step "));
}

TEST_F(SlurmScripts, ArrayRunsEachMember) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = cluster->submit({"--output=job_%A_%a", script("array"), "--epochs=5"});
  for (const char* seed : {"0", "1", "2", "3"}) {
    const std::string member = job + "_" + seed;
    EXPECT_TRUE(cluster->prints(member, "test accuracy ")) << cluster->output(member);
    EXPECT_TRUE(has_checkpoint(*cluster, "checkpoints_" + member));
  }
  EXPECT_EQ(cluster->survivors(), "");
  const auto queue_is_empty = [&] { return cluster->ask({"squeue", "--noheader"}).empty(); };
  EXPECT_TRUE(becomes_true(queue_is_empty)) << cluster->ask({"squeue"});  // a member takes a while to complete
}

TEST_F(SlurmScripts, SrunRanksNeedsNoDdprun) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = cluster->submit({script("srun_ranks")});
  EXPECT_EQ(cluster->wait(job), kCompleted);
  EXPECT_THAT(cluster->output(job), AllOf(HasSubstr("4 workers, batch 8"), HasSubstr("test accuracy 9")));
  EXPECT_TRUE(has_checkpoint(*cluster, "checkpoints_" + job));
  EXPECT_EQ(cluster->survivors(), "");
}

}  // namespace
}  // namespace ddp::test
