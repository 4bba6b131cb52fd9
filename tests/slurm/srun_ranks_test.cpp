// Programs of libddp as the tasks of a real Slurm's steps, and under mpirun in its batch scripts, without ddprun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>

#include "tests/integration/job.hpp"
#include "tests/slurm/on_cluster.hpp"
#include "tests/text.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kTraining = "train_breast_cancer --epochs=2 --checkpoint-dir=checkpoints_";

class SrunRanks : public OnCluster {
 protected:
  static std::string submit(Cluster& cluster, const std::string& script) {
    return cluster.submit({"--nodes=2", "--ntasks-per-node=2", "--wrap=" + script});
  }

  static void expect_trainings(Cluster& cluster, const std::string& job, int count, const std::string& workers) {
    EXPECT_EQ(cluster.wait(job), kCompleted) << cluster.output(job);
    EXPECT_EQ(occurrences(cluster.output(job), workers + " workers, batch 8"), count) << cluster.output(job);
    EXPECT_EQ(occurrences(cluster.output(job), "test accuracy 9"), count) << cluster.output(job);
  }
};

TEST_F(SrunRanks, StepsOfOneJobAreKeptApart) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = submit(*cluster, std::string("for i in 1 2 3; do srun --overlap ") + kTraining + "$i & done; wait");
  expect_trainings(*cluster, job, 3, "4");
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(SrunRanks, ProgramsOneAfterTheOtherInAStepMeetEachOnItsOwn) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = submit(*cluster, std::string("srun sh -c 'for i in 1 2 3; do ") + kTraining + "$i || exit; done'");
  expect_trainings(*cluster, job, 3, "4");
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(SrunRanks, JobsOnTheSameNodesAreKeptApart) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto first = submit(*cluster, std::string("srun ") + kTraining + "1");
  const auto second = submit(*cluster, std::string("srun ") + kTraining + "2");
  expect_trainings(*cluster, first, 1, "4");
  expect_trainings(*cluster, second, 1, "4");
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(SrunRanks, MeetAtTheFirstNodesNameWhereThatResolves) {
  Cluster* const cluster = make_cluster({.names_resolve = true});
  if (cluster == nullptr) return;
  expect_trainings(*cluster, submit(*cluster, std::string("srun ") + kTraining + "1"), 1, "4");
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(SrunRanks, ATaskThatIsKilledEndsAll) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job =
      submit(*cluster, "srun train_breast_cancer --epochs=1000000 --checkpoint-every=50 --checkpoint-dir=c");
  const auto rank_3 = [&] {
    for (const auto& each : cluster->processes()) {
      if (each.has("SLURM_PROCID=3")) return each.pid;
    }
    return -1;
  };
  ASSERT_TRUE(becomes_true([&] { return std::filesystem::exists(cluster->folder() / "c"); })) << cluster->output(job);
  ASSERT_GT(rank_3(), 0);
  ::kill(rank_3(), SIGKILL);
  const auto end = cluster->wait(job);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->state, "FAILED");
  EXPECT_THAT(cluster->output(job), HasSubstr("rank 3"));
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(SrunRanks, AWorkerOfDdprunMayCallSrun) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = submit(*cluster, std::string("srun --nodes=1 --ntasks=1 ddprun --nproc-per-node=1 sh -c 'exec srun "
                                                "--overlap --nodes=2 --ntasks=4 ") +
                                        kTraining + "1'");
  expect_trainings(*cluster, job, 1, "4");
  EXPECT_EQ(cluster->survivors(), "");
}

TEST_F(SrunRanks, AProgramThatTheBatchShellStartsIsAGroupOfItsOwn) {
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = submit(*cluster, std::string("exec ") + kTraining + "1");
  EXPECT_EQ(cluster->wait(job), kCompleted) << cluster->output(job);
  EXPECT_THAT(cluster->output(job), AllOf(HasSubstr("1 worker, batch 8"), HasSubstr("test accuracy 9")));
}

struct Mpi {
  const char* name;
  std::string command;
  friend std::ostream& operator<<(std::ostream& out, const Mpi& mpi) { return out << mpi.name; }
};

class MpirunInABatchScript : public SrunRanks, public ::testing::WithParamInterface<Mpi> {};

TEST_P(MpirunInABatchScript, StartsItsOwnRanks) {
  const std::string program = "/usr/bin/" + GetParam().command.substr(0, GetParam().command.find(' '));
  if (!std::filesystem::exists(program)) GTEST_SKIP() << "there is no " << program;
  Cluster* const cluster = make_cluster({});
  if (cluster == nullptr) return;
  const auto job = cluster->submit(
      {"--nodes=1", "--ntasks=4", "--wrap=" + GetParam().command + " -np 4 " + std::string(kTraining) + "1"});
  expect_trainings(*cluster, job, 1, "4");
  EXPECT_EQ(cluster->survivors(), "");
}

INSTANTIATE_TEST_SUITE_P(Of, MpirunInABatchScript,
                         ::testing::Values(Mpi{"OpenMpi", "mpirun.openmpi --allow-run-as-root"},
                                           Mpi{"Mpich", "mpirun.mpich"}),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace ddp::test
