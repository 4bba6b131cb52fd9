#include "launcher/environment/worker_environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace ddp::launcher {
namespace {

using ::testing::Contains;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

Assignment four_workers() { return {{1700000000, 0xabc, 2}, 4, 2, 5, "run-1", "127.0.0.1", 29400, "/tmp/d"}; }

// Names and values as torchrun sets them for one node; see docs/environment.md.
TEST(WorkerEnvironment, IsTorchrunsAndOurs) {
  EXPECT_THAT(
      worker_variables(four_workers(), 3, {}),
      UnorderedElementsAre("LOCAL_RANK=3", "RANK=3", "GROUP_RANK=0", "ROLE_RANK=3", "ROLE_NAME=default",
                           "LOCAL_WORLD_SIZE=4", "WORLD_SIZE=4", "GROUP_WORLD_SIZE=1", "ROLE_WORLD_SIZE=4",
                           "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29400", "TORCHELASTIC_RESTART_COUNT=2",
                           "TORCHELASTIC_MAX_RESTARTS=5", "TORCHELASTIC_RUN_ID=run-1",
                           "TORCHELASTIC_USE_AGENT_STORE=True",
                           "TORCHELASTIC_ERROR_FILE=/tmp/d/round_2_rank_3_error.json",
                           "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT",
                           "TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "OMP_NUM_THREADS=1",
                           "DDPRUN_ROUND_ID=1700000000-0000000000000abc-2"));
}

TEST(WorkerEnvironment, TheUsersOwnSettingsStay) {
  const auto variables = worker_variables(four_workers(), 0, {"OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"});
  EXPECT_THAT(variables, Not(Contains(StartsWith("OMP_NUM_THREADS="))));
  EXPECT_THAT(variables, Not(Contains(StartsWith("TORCH_NCCL_ASYNC_ERROR_HANDLING="))));
}

TEST(WorkerEnvironment, OneWorkerKeepsAllThreads) {
  auto assignment = four_workers();
  assignment.workers = 1;
  EXPECT_THAT(worker_variables(assignment, 0, {}), Not(Contains(StartsWith("OMP_NUM_THREADS="))));
}

TEST(WorkerEnvironment, LauncherSettingsAreWithheld) {
  for (const auto* name : {"PET_NPROC_PER_NODE", "DDPRUN_TOKEN", "DDPRUN_MAX_RESTARTS", "RANK", "MASTER_PORT"})
    EXPECT_TRUE(is_withheld(name)) << name;
  for (const auto* name : {"PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "RANKS", "XPET_A"})
    EXPECT_FALSE(is_withheld(name)) << name;
  // Every variable made for a worker replaces an inherited one; two of one name would be a coin toss.
  for (const auto& variable : worker_variables(four_workers(), 0, {})) {
    const auto name = variable.substr(0, variable.find('='));
    const bool user_may_set_it = name == "OMP_NUM_THREADS" || name == "TORCH_NCCL_ASYNC_ERROR_HANDLING";
    EXPECT_EQ(is_withheld(name), !user_may_set_it) << name;
  }
}

}  // namespace
}  // namespace ddp::launcher
