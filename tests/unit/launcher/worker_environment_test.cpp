#include "launcher/environment/worker_environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "launcher/command_line/option_table.hpp"

namespace ddp::launcher {
namespace {

using ::testing::Contains;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// The second of two nodes with 3 and 4 workers.
Assignment second_node() {
  Assignment assignment;
  assignment.round = {1700000000, 0xabc, 2};
  assignment.workers = 4;
  assignment.rank_first = 3;
  assignment.world_size = 7;
  assignment.group_rank = 1;
  assignment.group_world_size = 2;
  assignment.role = "trainer";
  assignment.role_rank_first = 0;
  assignment.role_world_size = 4;
  assignment.restart_count = 2;
  assignment.restarts_max = 5;
  assignment.run_id = "run-1";
  assignment.master_address = "node0";
  assignment.master_port = 29400;
  assignment.stop_signals = {SIGTERM, SIGUSR2};
  return assignment;
}

// Names and values as torchrun sets them; see docs/environment.md.
TEST(WorkerEnvironment, IsTorchrunsAndOurs) {
  EXPECT_THAT(
      worker_variables(second_node(), {3, "/tmp/error.json", {}, "/logs/run/round_2"}, {}),
      UnorderedElementsAre(
          "LOCAL_RANK=3", "RANK=6", "GROUP_RANK=1", "ROLE_RANK=3", "ROLE_NAME=trainer", "LOCAL_WORLD_SIZE=4",
          "WORLD_SIZE=7", "GROUP_WORLD_SIZE=2", "ROLE_WORLD_SIZE=4", "MASTER_ADDR=node0", "MASTER_PORT=29400",
          "TORCHELASTIC_RESTART_COUNT=2", "TORCHELASTIC_MAX_RESTARTS=5", "TORCHELASTIC_RUN_ID=run-1",
          "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_ERROR_FILE=/tmp/error.json",
          "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGUSR2", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "OMP_NUM_THREADS=1",
          "DDPRUN_ROUND_ID=1700000000-0000000000000abc-2", "DDPRUN_ROUND_DIRECTORY=/logs/run/round_2"));
}

TEST(WorkerEnvironment, TheUsersOwnSettingsStay) {
  const auto variables =
      worker_variables(second_node(), {}, {"OMP_NUM_THREADS=4", "TORCH_NCCL_ASYNC_ERROR_HANDLING=0"});
  EXPECT_THAT(variables, Not(Contains(StartsWith("OMP_NUM_THREADS="))));
  EXPECT_THAT(variables, Not(Contains(StartsWith("TORCH_NCCL_ASYNC_ERROR_HANDLING="))));
}

TEST(WorkerEnvironment, OneWorkerKeepsAllThreads) {
  auto assignment = second_node();
  assignment.workers = 1;
  EXPECT_THAT(worker_variables(assignment, {}, {}), Not(Contains(StartsWith("OMP_NUM_THREADS="))));
}

TEST(WorkerEnvironment, BoundWorkersGetAThreadPerCore) {
  EXPECT_THAT(worker_variables(second_node(), {0, "", 6}, {}), Contains("OMP_NUM_THREADS=6"));
  EXPECT_THAT(worker_variables(second_node(), {0, "", 6}, {"OMP_NUM_THREADS=2"}),
              Not(Contains(StartsWith("OMP_NUM_THREADS="))));
}

TEST(WorkerEnvironment, WorkersKeepToThePortRange) {
  auto assignment = second_node();
  EXPECT_THAT(worker_variables(assignment, {}, {}), Not(Contains(StartsWith("DDPRUN_PORT_RANGE="))));
  assignment.port_first = 2000;
  assignment.port_last = 2100;
  EXPECT_THAT(worker_variables(assignment, {}, {"DDPRUN_PORT_RANGE=1-2"}), Contains("DDPRUN_PORT_RANGE=2000-2100"));
}

TEST(WorkerEnvironment, WorkersAreToldWhoseVariablesOfSlurmTheyInherit) {
  auto assignment = second_node();
  EXPECT_THAT(worker_variables(assignment, {}, {}), Not(Contains(StartsWith("DDPRUN_SLURM_STEP="))));
  assignment.slurm_step = "42.0";
  EXPECT_THAT(worker_variables(assignment, {}, {"DDPRUN_SLURM_STEP=7.1"}), Contains("DDPRUN_SLURM_STEP=42.0"));
  EXPECT_TRUE(is_withheld("DDPRUN_SLURM_STEP")) << "that of another step is not theirs";
}

TEST(WorkerEnvironment, VirtualLocalRankShowsEachWorkerOneDevice) {
  auto assignment = second_node();
  assignment.virtual_local_rank = true;
  const auto without = worker_variables(assignment, {2, "", {}}, {});
  EXPECT_THAT(without, Contains("LOCAL_RANK=0"));
  EXPECT_THAT(without, Contains("RANK=5"));
  EXPECT_THAT(without, Contains("CUDA_VISIBLE_DEVICES=2"));
  EXPECT_THAT(worker_variables(assignment, {1, "", {}}, {"CUDA_VISIBLE_DEVICES=7, GPU-ab ,3"}),
              Contains("CUDA_VISIBLE_DEVICES=GPU-ab"));
  EXPECT_THROW(worker_variables(assignment, {3, "", {}}, {"CUDA_VISIBLE_DEVICES=7,6,3"}), UsageError);
}

TEST(WorkerEnvironment, NoVariableOfAnotherNameIsEverSet) {
  auto assignment = second_node();
  assignment.virtual_local_rank = true;
  assignment.port_first = 2000;
  assignment.port_last = 2100;
  assignment.slurm_step = "42.0";
  const auto all = worker_variables(assignment, {0, "/tmp/error.json", 2, "/logs"}, {"CUDA_VISIBLE_DEVICES=0,1,2,3"});
  EXPECT_EQ(all.size(), 24u);
  for (const auto& variable : all) EXPECT_TRUE(is_workers_variable(variable)) << variable;
  for (const auto* variable : {"LD_PRELOAD=x", "LD_LIBRARY_PATH=x", "LD_AUDIT=x", "GCONV_PATH=x", "PYTHONPATH=x",
                               "PYTHONSTARTUP=x", "PYTHONHOME=x", "BASH_ENV=x", "ENV=x", "PERL5OPT=x", "PATH=x", "RANK",
                               "=x", "", "RANK =x", "DDPRUN_TOKEN=x", "DDPRUN_AGENT_SOCKET=3:1"})
    EXPECT_FALSE(is_workers_variable(variable)) << variable;
  EXPECT_FALSE(is_workers_variable(std::string("RANK=1\0LD_PRELOAD=x", 19)));
}

TEST(WorkerArguments, LocalRankIsReplacedAndNothingElse) {
  const struct {
    const char *given, *want;
  } cases[] = {{"--rank=${local_rank}", "--rank=3"},
               {"$local_rank", "3"},
               {"$local_rank/x", "3/x"},
               {"$local_ranks", "$local_ranks"},
               {"${other}", "${other}"},
               {"$$local_rank", "$$local_rank"},
               {"cost $$5", "cost $$5"},
               {"$", "$"},
               {"${local_rank", "${local_rank"}};
  for (const auto& c : cases) EXPECT_THAT(worker_arguments({c.given}, 3), UnorderedElementsAre(c.want)) << c.given;
}

TEST(WorkerEnvironment, LauncherSettingsAreWithheld) {
  for (const auto* name : {"PET_NPROC_PER_NODE", "DDPRUN_TOKEN", "DDPRUN_MAX_RESTARTS", "RANK", "MASTER_PORT"})
    EXPECT_TRUE(is_withheld(name)) << name;
  for (const auto* name : {"PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "RANKS", "XPET_A"})
    EXPECT_FALSE(is_withheld(name)) << name;
  for (const auto* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE", "PMI_FD",
                           "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMIX_RANK", "PMIX_NAMESPACE"})
    EXPECT_TRUE(is_withheld(name)) << name << " names a rank of a launcher further out";
  for (const auto* name : {"OMPI_MCA_btl", "PMIX_MCA_gds", "MPIR_CVAR_DEBUG_SUMMARY"})
    EXPECT_FALSE(is_withheld(name)) << name;
  // Every variable made for a worker replaces an inherited one; two of one name would be a coin toss.
  for (const auto& variable : worker_variables(second_node(), {}, {})) {
    const auto name = variable.substr(0, variable.find('='));
    const bool user_may_set_it = name == "OMP_NUM_THREADS" || name == "TORCH_NCCL_ASYNC_ERROR_HANDLING";
    EXPECT_EQ(is_withheld(name), !user_may_set_it) << name;
  }
}

}  // namespace
}  // namespace ddp::launcher
