// ddprun in a Slurm step, which is only told to be one: signals as Slurm sends them, to every process of the step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/text.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DdprunStepSignals : public ::testing::Test {
 protected:
  DdprunStepSignals() {
    std::string name = std::filesystem::temp_directory_path() / "ddprun_step_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~DdprunStepSignals() override { std::filesystem::remove_all(folder_); }

  // As a task of a step on so many nodes.
  static Job::Options in_step(int nodes = 1, int node = 0) {
    const auto count = std::to_string(nodes), index = std::to_string(node);
    Job::Options options;
    options.environment = {"SLURM_JOB_ID=42",
                           "SLURM_STEP_ID=0",
                           "SLURM_STEP_NODELIST=" + (nodes == 1 ? "n1" : "n[1-" + count + "]"),
                           "SLURM_NNODES=" + count,
                           "SLURM_STEP_NUM_NODES=" + count,
                           "SLURM_NODEID=" + index,
                           "SLURM_NTASKS=" + count,
                           "SLURM_STEP_NUM_TASKS=" + count,
                           "SLURM_PROCID=" + index,
                           "SLURM_LOCALID=0",
                           "SLURM_STEP_TASKS_PER_NODE=1" + (nodes == 1 ? "" : "(x" + count + ")")};
    return options;
  }

  static std::vector<std::string> node(int rank, const std::string& port, std::vector<std::string> more) {
    more.insert(more.begin(), {"--nnodes=2", "--node-rank=" + std::to_string(rank), "--master-addr=127.0.0.1",
                               "--master-port=" + port});
    return more;
  }

  // Workers that live until they are ended.
  static std::vector<std::string> staying(int count) {
    return {"--max-restarts=3", "--nproc-per-node=" + std::to_string(count), "sh", "-c",
            "echo pid_$RANK $$ .; exec tail -f /dev/null"};
  }

  std::vector<std::string> stop_workers(int count, std::vector<std::string> does) const {
    std::vector<std::string> out{"--max-restarts=3", "--nproc-per-node=" + std::to_string(count), built("stop_worker"),
                                 folder_};
    out.insert(out.end(), does.begin(), does.end());
    return out;
  }

  static std::vector<pid_t> workers_of(Job& job, int rank_first, int count) {
    std::vector<pid_t> out;
    for (int rank = rank_first; rank < rank_first + count; ++rank)
      out.push_back(static_cast<pid_t>(job.number_after("pid_" + std::to_string(rank) + " ")));
    for (const auto pid : out) EXPECT_GT(pid, 0) << job.err();
    return out;
  }

  static void kill_and_wait(const std::vector<pid_t>& workers, int signal_number) {
    for (const auto worker : workers) ::kill(worker, signal_number);
    for (const auto worker : workers)
      EXPECT_TRUE(becomes_true([&] { return process_state(worker) == 0 || process_state(worker) == 'Z'; }));
  }

  // ddprun stands still meanwhile, and so hears of its workers' ends and of its own signal in one moment.
  static void signal_workers_before_ddprun(const Job& job, const std::vector<pid_t>& workers, int signal_number) {
    job.kill(SIGSTOP);
    kill_and_wait(workers, signal_number);
    job.kill(signal_number);
    job.kill(SIGCONT);
  }

  static void signal_all(const Job& job, int signal_number) {
    for (const auto pid : job.processes()) ::kill(pid, signal_number);
  }

  std::string folder_;
};

TEST_F(DdprunStepSignals, WorkersThatDieBeforeDdprunHearsOfItsSignalHaveNotFailed) {
  for (const int number : {SIGTERM, SIGINT}) {
    SCOPED_TRACE(number);
    Job job(staying(3), in_step());
    signal_workers_before_ddprun(job, workers_of(job, 0, 3), number);
    EXPECT_EQ(job.wait(), 128 + number) << job.err();
    EXPECT_THAT(job.err(), AllOf(Not(HasSubstr("error:")), Not(HasSubstr("restart 1"))));
    EXPECT_EQ(occurrences(job.out(), "pid_"), 3) << "none is started again";
    EXPECT_TRUE(job.is_gone_within());
  }
}

TEST_F(DdprunStepSignals, WhereEveryProcessGetsTheSignalNothingIsStartedAgain) {
  for (const int number : {SIGTERM, SIGINT}) {
    SCOPED_TRACE(number);
    Job job(staying(3), in_step());
    workers_of(job, 0, 3);
    signal_all(job, number);
    EXPECT_EQ(job.wait(), 128 + number) << job.err();
    EXPECT_THAT(job.err(), Not(HasSubstr("error:")));
    EXPECT_EQ(occurrences(job.out(), "pid_"), 3);
    EXPECT_TRUE(job.is_gone_within());
  }
}

TEST_F(DdprunStepSignals, WorkersOfOneNodeDieWhileTheDdprunOfAnotherHearsFirst) {
  const auto port = free_port();
  Job zero(node(0, port, staying(1)), in_step(2, 0)), one(node(1, port, staying(2)), in_step(2, 1));
  workers_of(zero, 0, 1);
  const auto workers = workers_of(one, 1, 2);
  one.kill(SIGSTOP);
  kill_and_wait(workers, SIGTERM);
  zero.kill(SIGTERM);
  EXPECT_TRUE(zero.prints("SIGTERM from pid")) << zero.err();
  one.kill(SIGTERM);
  one.kill(SIGCONT);
  EXPECT_EQ(zero.wait(), 143) << zero.err();
  EXPECT_EQ(one.wait(), 143) << one.err();
  EXPECT_EQ(occurrences(zero.out(), "pid_") + occurrences(one.out(), "pid_"), 3);
  for (const auto* job : {&zero, &one}) {
    EXPECT_THAT(job->err(), Not(HasSubstr("error:")));
    EXPECT_TRUE(job->is_gone_within());
  }
}

TEST_F(DdprunStepSignals, AWorkerThatIsKilledAloneFailsAndAllStartAgain) {
  for (const int number : {SIGTERM, SIGKILL}) {
    SCOPED_TRACE(number);
    Job job(staying(2), in_step());
    ::kill(workers_of(job, 0, 2)[1], number);
    ASSERT_TRUE(job.prints("restart 1 of 3")) << job.err();
    ASSERT_TRUE(job.prints("pid_", 4)) << job.err();
    job.kill(SIGTERM);
    EXPECT_EQ(job.wait(), 143) << job.err();
  }
}

TEST_F(DdprunStepSignals, AWarningToEveryProcessEndsNoneAndReachesThoseThatHandleIt) {
  Job job(stop_workers(3, {"deaf", "catch=1"}), in_step());
  ASSERT_TRUE(job.prints("up round", 3)) << job.err();
  signal_all(job, SIGUSR1);
  ASSERT_TRUE(job.prints("caught")) << job.err();
  ASSERT_TRUE(job.prints(": passed on to 1 worker that handles it")) << job.err();
  EXPECT_TRUE(becomes_true([&] { return job.processes().size() == 5; })) << "ddprun, its guardian and the workers";
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.err();
  EXPECT_EQ(occurrences(job.out(), "up round"), 3);
}

TEST_F(DdprunStepSignals, AWarningThatNobodyHandlesIsSaidAndPassedOver) {
  Job job(staying(2), in_step());
  workers_of(job, 0, 2);
  signal_all(job, SIGUSR1);
  ASSERT_TRUE(job.prints("no worker of this node handles it")) << job.err();
  EXPECT_TRUE(becomes_true([&] { return job.processes().size() == 4; }));  // one in an exec is not found
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.err();
  EXPECT_EQ(occurrences(job.out(), "pid_"), 2);
}

TEST_F(DdprunStepSignals, AWarningToEveryProcessStopsWorkersOfLibddpAtOneStep) {
  const auto port = free_port();
  Job zero(node(0, port, {"--nproc-per-node=2", built("should_stop_worker")}), in_step(2, 0));
  Job one(node(1, port, {"--nproc-per-node=1", built("should_stop_worker")}), in_step(2, 1));
  ASSERT_TRUE(zero.prints("up round", 2)) << zero.err();
  ASSERT_TRUE(one.prints("up round")) << one.err();
  for (const auto* job : {&zero, &one}) signal_all(*job, SIGUSR1);
  EXPECT_EQ(zero.wait(), 75) << zero.err();
  EXPECT_EQ(one.wait(), 75) << one.err();
  EXPECT_EQ(occurrences(zero.out(), "stops at"), 2);
}

TEST_F(DdprunStepSignals, WhoIsEndedByAWarningAfterItsStepHasStoppedThere) {
  Job job(stop_workers(3, {"late_usr1=1"}), in_step());
  ASSERT_TRUE(job.prints("up round", 3)) << job.err();
  job.kill(SIGUSR1);
  EXPECT_EQ(job.wait(), 75) << job.err();
  EXPECT_EQ(occurrences(job.out(), "stops at"), 3);
}

TEST_F(DdprunStepSignals, WhereAWorkerDiesOfTheWarningTheJobStops) {
  Job job(stop_workers(2, {"deaf", "naked=1"}), in_step());
  ASSERT_TRUE(job.prints("up round", 2)) << job.err();
  signal_workers_before_ddprun(job, {static_cast<pid_t>(job.number_after("rank=1 pid="))}, SIGUSR1);
  EXPECT_EQ(job.wait(), 128 + SIGUSR1) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr("SIGUSR1 to the processes of host"), Not(HasSubstr("error:"))));
  EXPECT_EQ(occurrences(job.out(), "up round"), 2);
  EXPECT_TRUE(job.is_gone_within());
}

}  // namespace
}  // namespace ddp::test
