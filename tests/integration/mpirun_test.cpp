// The example under the mpirun of Open MPI and of MPICH, without ddprun: on one host, where both are installed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/job.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;

struct Mpi {
  const char* name;
  const char* program;
  const char* package;                     // Debian's
  std::vector<std::string> options;        // for four ranks on any machine, by any user
  std::vector<std::string> outside_slurm;  // where SLURM_* are set and there is no Slurm
  friend std::ostream& operator<<(std::ostream& out, const Mpi& mpi) { return out << mpi.name; }
};

const Mpi kOpenMpi{"OpenMpi",
                   "/usr/bin/mpirun.openmpi",
                   "openmpi-bin",
                   {"--allow-run-as-root", "--oversubscribe"},
                   {"--mca", "ras", "^slurm", "--mca", "plm", "isolated"}};
const Mpi kMpich{"Mpich", "/usr/bin/mpirun.mpich", "mpich", {}, {"-launcher", "fork", "-rmk", "user"}};

class Mpirun : public ::testing::TestWithParam<Mpi> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(GetParam().program)) {
      GTEST_SKIP() << "there is no " << GetParam().program << " (Debian's package " << GetParam().package << ")";
    }
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string training(const std::string& name) const {
    return std::string(DDP_TEST_BIN_DIR) + "/train_breast_cancer --epochs 2 --data " + DDP_TEST_SOURCE_DIR +
           "/examples/data/breast_cancer.csv --checkpoint-dir " + (folder_ / name).string();
  }

  // `command` of a shell on each of four ranks.
  std::unique_ptr<Job> start(const std::string& command, std::vector<std::string> more_options = {},
                             std::vector<std::string> environment = {}) {
    auto arguments = GetParam().options;
    arguments.insert(arguments.end(), more_options.begin(), more_options.end());
    if (GetParam().name == kOpenMpi.name) {
      // Two that start at once may both make the folder that they share in /tmp, and then one of them gives up.
      const auto sessions = folder_ / ("sessions_" + std::to_string(jobs_started_++));
      std::filesystem::create_directories(sessions);
      for (const auto& word : {std::string("--mca"), std::string("orte_tmpdir_base"), sessions.string()})
        arguments.push_back(word);
    }
    for (const auto& word : {std::string("-np"), std::string("4"), std::string("sh"), std::string("-c"), command}) {
      arguments.push_back(word);
    }
    return std::make_unique<Job>(arguments,
                                 Job::Options{.environment = std::move(environment), .program = GetParam().program});
  }

  static void expect_training_of_four(Job& job) {
    EXPECT_EQ(job.wait(), 0) << job.err();
    EXPECT_THAT(job.out(), HasSubstr("4 workers, batch 8 per worker"));
    EXPECT_THAT(job.out(), HasSubstr("test accuracy 98.25 % on 114 samples"));
    EXPECT_TRUE(job.is_gone_within());
  }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("ddp_mpirun_" + std::to_string(::getpid()));
  int jobs_started_ = 0;
};

TEST_P(Mpirun, FourRanksTrain) {
  const auto job = start("exec " + training("checkpoints"));
  expect_training_of_four(*job);
}

TEST_P(Mpirun, FourRanksTrainBehindAScript) {
  const auto job = start("exec 5</dev/null; " + training("checkpoints") + "; exit $?");
  expect_training_of_four(*job);
}

// Those who hold no descriptor of the launcher's any more, and are not its children.
TEST_P(Mpirun, FourRanksTrainBehindAProgramThatClosesDescriptors) {
  const auto job =
      start("exec bash -c 'for fd in /proc/self/fd/*; do fd=${fd##*/}; [ $fd -gt 2 ] && eval \"exec $fd>&-\"; done; " +
            training("checkpoints") + "; exit $?'");
  expect_training_of_four(*job);
}

// What an outer mpirun says of ddprun itself.
TEST_P(Mpirun, WithinAWorkerOfDdprunItsRanksAreTheGroup) {
  std::string arguments;
  for (const auto& option : GetParam().options) arguments += option + " ";
  Job job(
      {"--nproc-per-node=1", "sh", "-c",
       std::string("exec ") + GetParam().program + " " + arguments + "-np 4 " + training("checkpoints")},
      Job::Options{.environment = {"OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=0", "PMI_RANK=0", "PMI_SIZE=1"}});
  expect_training_of_four(job);
}

TEST_P(Mpirun, TwoJobsAtOnceAreKeptApart) {
  const auto first = start("exec " + training("first"));
  const auto second = start("exec " + training("second"));
  expect_training_of_four(*first);
  expect_training_of_four(*second);
}

// There they would make every process rank 0 of 2, on nodes that nobody knows.
TEST_P(Mpirun, InABatchShellSlurmsVariablesMeanNothing) {
  const auto job = start("exec " + training("checkpoints"), GetParam().outside_slurm,
                         {"SLURM_JOB_ID=42", "SLURM_JOBID=42", "SLURM_JOB_NODELIST=n[1-2]", "SLURM_NODELIST=n[1-2]",
                          "SLURM_NNODES=2", "SLURM_NTASKS=2", "SLURM_PROCID=0", "SLURM_NODEID=0", "SLURM_LOCALID=0",
                          "SLURM_TASKS_PER_NODE=1(x2)", "SLURM_JOB_CPUS_PER_NODE=2(x2)"});
  expect_training_of_four(*job);
}

INSTANTIATE_TEST_SUITE_P(Of, Mpirun, ::testing::Values(kOpenMpi, kMpich),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace ddp::test
