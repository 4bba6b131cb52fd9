// ddprun as the task of a real Slurm's steps, and all that Slurm and its machines do to a job. No process survives any.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/slurm/on_cluster.hpp"
#include "tests/text.hpp"

namespace ddp::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// Training that takes longer than any test, with checkpoints in the folder "checkpoints".
constexpr const char* kEndlessTraining =
    "train_breast_cancer --epochs=1000000 --batch-size=4 --checkpoint-every=50 --resume --checkpoint-dir=checkpoints";
// Workers that do nothing, and end by SIGTERM.
constexpr const char* kIdleWorkers = "sh -c 'echo worker $RANK of $WORLD_SIZE is up; exec tail -f /dev/null'";

class DdprunUnderSlurm : public OnCluster {
 protected:
  // A batch job on all nodes of 2, or as `sbatch` is told, whose only step runs this.
  static std::string submit(Cluster& cluster, const std::string& step, std::vector<std::string> sbatch = {}) {
    sbatch.insert(sbatch.begin(), {"--nodes=2", "--ntasks-per-node=1"});
    sbatch.push_back("--wrap=exec srun " + step);
    return cluster.submit(sbatch);
  }

  static bool trains(const Cluster& cluster) {
    return becomes_true([&] { return has_checkpoint(cluster, "checkpoints"); }, 60s);
  }

  // The pid of the process of this node whose command line begins so; -1 where there is none.
  static pid_t process(const Cluster& cluster, int node, const std::string& command_line) {
    for (const auto& each : cluster.processes()) {
      const bool is_there = each.has("SLURMD_NODENAME=" + Cluster::node(node));
      if (is_there && each.command_line.starts_with(command_line)) return each.pid;
    }
    return -1;
  }
};

TEST_F(DdprunUnderSlurm, FourNodesMeetWithNoRendezvousFlag) {
  Cluster* const cluster = make_cluster({.nodes = 4});
  if (cluster == nullptr) return;
  auto srun = cluster->run({"srun", "--nodes=4", "--ntasks-per-node=1", "ddprun", "--nproc-per-node=2", "sh", "-c",
                            "echo rank $RANK of $WORLD_SIZE on $SLURMD_NODENAME"});
  EXPECT_EQ(srun.wait(), 0) << srun.err();
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_THAT(srun.out(), HasSubstr("rank " + std::to_string(rank) + " of 8 on " + Cluster::node(rank / 2) + "\n"));
  }
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(DdprunUnderSlurm, AWorkersExitCodeIsTheJobs) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job =
      submit(*cluster, "ddprun --nproc-per-node=2 sh -c '[ $RANK != 3 ] || exit 42; exec tail -f /dev/null'");
  EXPECT_EQ(cluster->wait(job), (Cluster::End{"FAILED", "42:0"}));
  EXPECT_THAT(cluster->output(job), HasSubstr("rank 3 ended with exit code 42"));
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(DdprunUnderSlurm, ScancelOfAJobStopsItAtOneStepWithACheckpoint) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = submit(*cluster, std::string("ddprun --nproc-per-node=2 ") + kEndlessTraining);
  ASSERT_TRUE(trains(*cluster)) << cluster->output(job);
  cluster->ask({"scancel", job});
  EXPECT_EQ(cluster->survivors(), "");
  EXPECT_EQ(cluster->wait(job).value_or(Cluster::End{}).state, "CANCELLED");
  EXPECT_THAT(cluster->output(job), HasSubstr("stopped after step "));
}

TEST_F(DdprunUnderSlurm, ScancelOfAStepEndsItAndNotItsJob) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = cluster->submit({"--nodes=2", "--ntasks-per-node=1",
                                    std::string("--wrap=srun ddprun --nproc-per-node=2 ") + kIdleWorkers +
                                        "; echo step ended; srun ddprun sh -c 'echo next step'"});
  ASSERT_TRUE(cluster->prints(job, "is up", 4)) << cluster->output(job);
  cluster->ask({"scancel", job + ".0"});
  EXPECT_EQ(cluster->wait(job), kCompleted);
  EXPECT_THAT(cluster->output(job), HasSubstr("step ended"));
  EXPECT_EQ(occurrences(cluster->output(job), "next step"), 2) << cluster->output(job);
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(DdprunUnderSlurm, AWarningToEveryProcessOfTheStepStopsItAtOneStepWith75) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = submit(*cluster, std::string("ddprun --nproc-per-node=2 ") + kEndlessTraining);
  ASSERT_TRUE(trains(*cluster)) << cluster->output(job);
  cluster->ask({"scancel", "--signal=USR1", job});
  EXPECT_EQ(cluster->wait(job), (Cluster::End{"FAILED", "75:0"}));
  EXPECT_THAT(cluster->output(job), HasSubstr("stopped after step "));
  EXPECT_EQ(cluster->survivors(), "");
}

// Slurm looks at the limits of time each half minute.
TEST_F(DdprunUnderSlurm, AtTheTimeLimitAJobIsWarnedAndRequeuedOrStopped) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto warned =
      cluster->submit({"--time=1", "--signal=B:USR1@60", std::string(DDP_TEST_SOURCE_DIR) + "/slurm/requeue.sbatch",
                       "--batch-size=4", "--epochs=1000000"});
  const auto stopped = submit(*cluster, std::string("ddprun --nproc-per-node=2 ") + kEndlessTraining, {"--time=1"});
  ASSERT_TRUE(trains(*cluster)) << cluster->output(stopped);
  cluster->ask({"scontrol", "update", "JobId=" + stopped, "EndTime=now+5"});  // Slurm refuses a second that has begun
  EXPECT_EQ(cluster->wait(stopped).value_or(Cluster::End{}).state, "TIMEOUT");
  EXPECT_TRUE(cluster->prints(stopped, "stopped after step ")) << cluster->output(stopped);
  EXPECT_TRUE(cluster->prints(warned, "resumed after step ")) << cluster->output(warned);
  EXPECT_THAT(cluster->output(warned), HasSubstr("stopped after step "));
  EXPECT_EQ(cluster->field(warned, "Restarts"), "1");
  cluster->ask({"scancel", warned});
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(DdprunUnderSlurm, ScontrolRequeueStopsAtOneStepAndTheNextRunResumes) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = submit(*cluster, std::string("ddprun --nproc-per-node=2 ") + kEndlessTraining, {"--requeue"});
  ASSERT_TRUE(trains(*cluster)) << cluster->output(job);
  cluster->ask({"scontrol", "requeue", job});
  ASSERT_TRUE(cluster->prints(job, "stopped after step ")) << cluster->output(job);
  ASSERT_TRUE(cluster->prints(job, "resumed after step ")) << cluster->output(job);
  cluster->ask({"scancel", job});
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(DdprunUnderSlurm, AnUrgentJobPutsItBackIntoTheQueueAndItResumesAfterwards) {
  Cluster* const cluster = make_cluster({.cpus = 1, .jobs = 1, .has_urgent = true});
  if (cluster == nullptr) return;
  const auto job = submit(*cluster, std::string("ddprun --nproc-per-node=2 ") + kEndlessTraining, {"--requeue"});
  ASSERT_TRUE(trains(*cluster)) << cluster->output(job);
  const auto urgent = submit(*cluster, "ddprun sh -c 'echo urgent'", {"--partition=urgent"});
  EXPECT_EQ(cluster->wait(urgent), kCompleted) << cluster->output(urgent);
  EXPECT_TRUE(cluster->prints(job, "stopped after step ")) << cluster->output(job);
  EXPECT_TRUE(cluster->prints(job, "resumed after step ")) << cluster->output(job);
  cluster->ask({"scancel", job});
  EXPECT_EQ(cluster->survivors(), "");
}

// After KillWait less 5 s.
TEST_F(DdprunUnderSlurm, WorkersThatIgnoreSigtermAreKilledBeforeSlurmKillsDdprun) {
  Cluster* const cluster = make_cluster({.kill_wait = 7s});
  if (cluster == nullptr) return;
  const auto job =
      submit(*cluster, "ddprun --nproc-per-node=2 sh -c 'trap \"\" TERM; echo worker is up; exec tail -f /dev/null'");
  ASSERT_TRUE(cluster->prints(job, "worker is up", 4)) << cluster->output(job);
  cluster->ask({"scancel", job});
  EXPECT_EQ(cluster->survivors(), "");
  EXPECT_EQ(occurrences(cluster->output(job), "Exited with exit code 143"), 2) << cluster->output(job);
}

TEST_F(DdprunUnderSlurm, SeveralOnOneNodeAreRefused) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  auto srun = cluster->run({"srun", "--nodes=2", "--ntasks-per-node=2", "ddprun", "true"});
  EXPECT_EQ(srun.wait(), 2) << srun.err();
  EXPECT_THAT(srun.err(), HasSubstr("--ntasks-per-node=1"));
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(DdprunUnderSlurm, AKilledWorkerCostsOneRestart) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  // It is tail that says so: the shell has become that by then.
  const auto job = submit(*cluster,
                          "ddprun --nproc-per-node=2 --max-restarts=1 sh -c '"
                          "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; file=$(mktemp); echo worker is up >$file; "
                          "exec 3<$file; rm $file; exec tail -f /proc/self/fd/3'");
  ASSERT_TRUE(cluster->prints(job, "worker is up", 4)) << cluster->output(job);
  const pid_t worker = process(*cluster, 1, "tail");
  ASSERT_GT(worker, 0);
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_EQ(cluster->wait(job), kCompleted) << cluster->output(job);
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(DdprunUnderSlurm, AKilledDdprunEndsTheJob) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = submit(*cluster, std::string("ddprun --nproc-per-node=2 ") + kIdleWorkers, {"--nodes=2"});
  ASSERT_TRUE(cluster->prints(job, "is up", 4)) << cluster->output(job);
  const pid_t task = process(*cluster, 1, built("ddprun"));
  ASSERT_GT(task, 0);
  ASSERT_EQ(::kill(task, SIGKILL), 0);
  EXPECT_EQ(cluster->wait(job).value_or(Cluster::End{}).state, "FAILED") << cluster->output(job);
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(DdprunUnderSlurm, WithoutNoKillTheLossOfANodePutsTheJobBackIntoTheQueue) {
  Cluster* const cluster = make_cluster({.nodes = 3});
  if (cluster == nullptr) return;
  const auto job = submit(*cluster, std::string("ddprun --nproc-per-node=2 ") + kEndlessTraining, {"--requeue"});
  ASSERT_TRUE(trains(*cluster)) << cluster->output(job);
  ASSERT_EQ(cluster->field(job, "NodeList"), "n[1-2]");
  cluster->crash(1);
  EXPECT_EQ(cluster->wait(job).value_or(Cluster::End{}).state, "NODE_FAIL") << cluster->output(job);
  EXPECT_TRUE(cluster->prints(job, "resumed after step ")) << cluster->output(job);
  EXPECT_EQ(cluster->field(job, "NodeList"), "n[1,3]");
  cluster->ask({"scancel", job});
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(DdprunUnderSlurm, TwoJobsAndTwoStepsOfEachAtOnceKeepApart) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const fs::path gate = cluster->folder() / "gate";  // which opens when all are there, so that they really run at once
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  const std::string step =
      "srun --overlap ddprun --nproc-per-node=2 sh -c 'echo $RANK is here; : <gate; "
      "exec train_breast_cancer --epochs=5 --checkpoint-dir=checkpoints_$SLURM_JOB_ID.$SLURM_STEP_ID'";
  std::vector<std::string> jobs;
  for (int job = 0; job < 2; ++job) {
    jobs.push_back(cluster->submit(
        {"--nodes=2", "--ntasks-per-node=1", "--wrap=" + step + " & one=$!; " + step + " & wait $one && wait $!"}));
  }
  for (const auto& job : jobs) EXPECT_TRUE(cluster->prints(job, " is here", 8)) << cluster->output(job);
  const base::UniqueFd opened(::open(gate.c_str(), O_RDWR | O_CLOEXEC));
  for (const auto& job : jobs) {
    EXPECT_EQ(cluster->wait(job), kCompleted) << cluster->output(job);
    EXPECT_EQ(occurrences(cluster->output(job), "4 workers, batch 8 per worker"), 2) << cluster->output(job);
    EXPECT_EQ(occurrences(cluster->output(job), "test accuracy "), 2) << cluster->output(job);
    for (const char* number : {".0", ".1"}) EXPECT_TRUE(has_checkpoint(*cluster, "checkpoints_" + job + number));
  }
  EXPECT_EQ(cluster->survivors(), "");
}

}  // namespace
}  // namespace ddp::test
