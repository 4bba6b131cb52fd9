// PyTorch's DistributedDataParallel in workers of ddprun: scripts that run under torchrun run under ddprun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/interop/python.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;
using PytorchDdp = PythonTest;

TEST_F(PytorchDdp, AScriptRunsUnchanged) {
  Job job({"--standalone", "--nproc-per-node=4", script("train_ddp.py")}, python_job());
  EXPECT_EQ(job.wait(), 0) << job.err();
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(job.out(), HasSubstr("round 0 rank " + std::to_string(rank) + " of 4 has the right parameters"));
}

TEST_F(PytorchDdp, AScriptRunsUnchangedAfterARestartInTheMiddle) {
  Job job({"--standalone", "--nproc-per-node=2", "--max-restarts=1", script("train_ddp.py"), "--fail-in-rounds=1"},
          python_job());
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("round 0 rank 1 trains"));
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_THAT(job.out(), HasSubstr("round 1 rank " + std::to_string(rank) + " of 2 has the right parameters"));
}

TEST_F(PytorchDdp, OnlyDdprunServesTheStore) {
  Job job({"--standalone", "--nproc-per-node=2", script("who_serves_the_store.py")}, python_job());
  EXPECT_EQ(job.wait(), 0) << job.err();
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_THAT(job.out(), HasSubstr("rank " + std::to_string(rank) +
                                     ": the store is served by ['ddprun'], TORCHELASTIC_USE_AGENT_STORE=True\n"));
}

TEST_F(PytorchDdp, TenKilledWorkersOfTenAreRecovered) {
  constexpr int kKills = 10, kWorkers = 4;
  Job job(
      {"--standalone", "--nproc-per-node=4", "--max-restarts=10", script("train_ddp.py"), "--train-on-in-rounds=10"},
      python_job());
  for (int round = 0; round < kKills; ++round) {
    const auto in_round = "round " + std::to_string(round) + " rank ";
    ASSERT_TRUE(job.prints(in_round, kWorkers)) << in_round << "\n" << job.out() << job.err();
    const auto victim = job.number_after(in_round + std::to_string(round % kWorkers) + " trains, pid ");
    ASSERT_GT(victim, 0);
    ASSERT_EQ(::kill(static_cast<pid_t>(victim), SIGKILL), 0);
  }
  EXPECT_EQ(job.wait(), 0) << job.err();
  for (int rank = 0; rank < kWorkers; ++rank)
    EXPECT_THAT(job.out(), HasSubstr("round 10 rank " + std::to_string(rank) + " of 4 has the right parameters"));
}

}  // namespace
}  // namespace ddp::test
