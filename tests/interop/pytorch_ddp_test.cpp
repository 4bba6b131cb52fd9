// PyTorch's DistributedDataParallel in workers of ddprun: scripts that run under torchrun run under ddprun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <ostream>

#include "tests/integration/free_port.hpp"
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

// Few kills of few workers: each worker of each round spends five seconds of a core on importing PyTorch.
TEST_F(PytorchDdp, KilledWorkersAreRecoveredEveryTime) {
  constexpr int kKills = 4, kWorkers = 2;
  Job job({"--standalone", "--nproc-per-node=2", "--max-restarts=4", script("train_ddp.py"), "--train-on-in-rounds=4"},
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
    EXPECT_THAT(job.out(), HasSubstr("round 4 rank " + std::to_string(rank) + " of 2 has the right parameters"));
}

// Two agents on this host, as two nodes would be started.
struct Meeting {
  const char* name;
  std::vector<std::string> (*options)(int node, const std::string& port);
};

void PrintTo(const Meeting& meeting, std::ostream* out) { *out << meeting.name; }

class PytorchDdpOnTwoAgents : public PythonTest, public ::testing::WithParamInterface<Meeting> {};

TEST_P(PytorchDdpOnTwoAgents, AScriptRunsUnchangedAfterARestartInTheMiddle) {
  const auto port = free_port();
  const auto arguments = [&](int node) {
    auto words = GetParam().options(node, port);
    words.insert(words.end(), {"--nnodes=2", "--nproc-per-node=2", "--max-restarts=1", script("train_ddp.py"),
                               "--fail-in-rounds=1"});
    return words;
  };
  Job first(arguments(0), python_job()), second(arguments(1), python_job());
  EXPECT_EQ(first.wait(), 0) << first.out() << first.err();
  EXPECT_EQ(second.wait(), 0) << second.out() << second.err();
  const auto out = first.out() + second.out();
  EXPECT_THAT(out, HasSubstr("round 0 rank 1 trains"));
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(out, HasSubstr("round 1 rank " + std::to_string(rank) + " of 4 has the right parameters"));
}

INSTANTIATE_TEST_SUITE_P(
    , PytorchDdpOnTwoAgents,
    ::testing::Values(
        Meeting{"Static",
                [](int node, const std::string& port) -> std::vector<std::string> {
                  return {"--node-rank=" + std::to_string(node), "--master-addr=127.0.0.1", "--master-port=" + port};
                }},
        Meeting{"C10d",
                [](int, const std::string& port) -> std::vector<std::string> {
                  return {"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:" + port, "--rdzv-id=interop"};
                }}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace ddp::test
