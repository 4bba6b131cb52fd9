#include "launcher/plan/plan.hpp"

#include "launcher/environment/worker_environment.hpp"
#include "tests/unit/launcher/a_machine.hpp"

namespace ddp::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Plan : public AMachine {
 protected:
  std::string plan(std::vector<std::string> arguments, const std::vector<std::string>& inherited = {},
                   const std::vector<Binding>& bindings = {}) const {
    arguments.insert(arguments.begin(), "--dry-run");
    return plan_text(parse(arguments), inherited, bindings);
  }
};

TEST_F(Plan, OfOneNodeIsComplete) {
  EXPECT_EQ(plan({"--nproc-per-node=2", "--max-restarts=3", "--monitor-interval=1", "train.py", "--out",
                  "r${local_rank}", "a b"},
                 {"HOME=/root", "PET_MAX_RESTARTS=9", "DDPRUN_TOKEN=secret", "RANK=7"}),
            R"(ddprun starts nothing now; this is what it would do

nodes     1, this one
store     127.0.0.1, a free port
workers   2 on this node, role default; rank 0 to 1
program   /usr/bin/python3 -u train.py --out 'r${local_rank}' 'a b'
failures  all workers of the job start again, 3 times at most
signals   SIGTERM, SIGINT, SIGHUP, SIGQUIT: stop the job, with SIGKILL after 30 s
logs      on the console only
binding   none
notice    without effect: --monitor-interval=1: nothing polls

every worker has ddprun's environment, and
  GROUP_RANK=0
  ROLE_NAME=default
  LOCAL_WORLD_SIZE=2
  WORLD_SIZE=2
  GROUP_WORLD_SIZE=1
  ROLE_WORLD_SIZE=2
  MASTER_ADDR=127.0.0.1
  MASTER_PORT=<a free port>
  TORCHELASTIC_RESTART_COUNT=0
  TORCHELASTIC_MAX_RESTARTS=3
  TORCHELASTIC_RUN_ID=<made at the start>
  TORCHELASTIC_USE_AGENT_STORE=True
  TORCHELASTIC_ERROR_FILE=<a file of this worker>
  TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT
  DDPRUN_ROUND_ID=<new in every round>
  TORCH_NCCL_ASYNC_ERROR_HANDLING=1
  OMP_NUM_THREADS=1
but not, as they configure a launcher: PET_MAX_RESTARTS DDPRUN_TOKEN

worker 0  LOCAL_RANK=0  RANK=0  ROLE_RANK=0
          /usr/bin/python3 -u train.py --out r0 'a b'
worker 1  LOCAL_RANK=1  RANK=1  ROLE_RANK=1
          /usr/bin/python3 -u train.py --out r1 'a b'
)");
}

TEST_F(Plan, NamesEveryVariableThatAWorkerGets) {
  for (const auto& options : std::vector<std::vector<std::string>>{
           {"--nproc-per-node=3"},
           {"--virtual-local-rank", "--nproc-per-node=1", "--port-range=20-30"},
           {"--nnodes=2", "--nproc-per-node=2", "--node-rank=1"},
           {"--nnodes=1:2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a", "--numa-binding=node"}}) {
    SCOPED_TRACE(::testing::PrintToString(options));
    auto line = options;
    line.emplace_back("true");
    const auto config = parse(line);
    Assignment assignment;
    assignment.workers = config.workers;
    assignment.virtual_local_rank = config.virtual_local_rank;
    assignment.port_last = config.rendezvous.port_last;
    const auto text = plan(line);
    for (const auto& variable : worker_variables(assignment, {}, {}))
      EXPECT_THAT(text, HasSubstr(" " + variable.substr(0, variable.find('=') + 1))) << variable;
  }
}

TEST_F(Plan, WhatOnlyTheMeetingDecidesIsShownAsSuch) {
  const auto text = plan({"--nnodes=2:4", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=[fd00::1]:1234",
                          "--rdzv-id=bert", "--node-rank=1", "--rdzv-conf=last_call_timeout=10,is_host=0",
                          "--port-range=2000-2100", "--local-addr=fd00::2", "true"});
  for (const auto* line :
       {"nodes     2 to 4, this is node 1 if it can be\n", "meeting   [fd00::1]:1234, job bert;",
        "this node does not serve it", "10 s more for the rest of the nodes", "silence of 3 s",
        "rank <given at the meeting>\n", "ports from 2000 to 2100", "others reach this node at fd00::2",
        "  WORLD_SIZE=<workers of all nodes>\n", "  GROUP_WORLD_SIZE=<2 to 4>\n",
        "  GROUP_RANK=<given at the meeting>\n", "  MASTER_ADDR=<address of rank 0's node>\n",
        "  TORCHELASTIC_RUN_ID=bert\n", "  DDPRUN_PORT_RANGE=2000-2100\n",
        "worker 1  LOCAL_RANK=1  RANK=<given at the meeting> + 1  ROLE_RANK=<given at the meeting> + 1\n"})
    EXPECT_THAT(text, HasSubstr(line));
}

TEST_F(Plan, StaticNodesKnowMore) {
  auto text = plan({"--nnodes=3", "--nproc-per-node=2", "--node-rank=2", "--master-addr=node0", "true"});
  for (const auto* line : {"nodes     3, this is node 2\n", "meeting   node0:29500, job none; node 0 is there\n",
                           "rank 4 to 5 if every node has 2 workers\n", "  GROUP_RANK=2\n", "  GROUP_WORLD_SIZE=3\n",
                           "  MASTER_ADDR=node0\n", "  MASTER_PORT=29500\n", "executes /bin/true\n",
                           "worker 0  LOCAL_RANK=0  RANK=<given at the meeting> + 0"})
    EXPECT_THAT(text, HasSubstr(line));
  text = plan({"--nnodes=3", "--nproc-per-node=2", "--master-addr=node0", "true"});
  EXPECT_THAT(text, HasSubstr("rank 0 to 1\n"));
  EXPECT_THAT(text, HasSubstr("worker 1  LOCAL_RANK=1  RANK=1  ROLE_RANK=1\n"));
  EXPECT_THAT(plan({"--master-port=29501", "true"}), HasSubstr("  WORLD_SIZE=1\n"));
  EXPECT_THAT(plan({"--nnodes=2", "--master-addr=localhost", "true"}), HasSubstr("  MASTER_ADDR=127.0.0.1\n"));
}

TEST_F(Plan, WhatSlurmGaveIsToldWithWhereItIsFrom) {
  environment["SLURM_JOB_ID"] = "42";
  environment["SLURM_STEP_ID"] = "0";
  environment["SLURM_STEP_NODELIST"] = "n[1-4]";
  environment["SLURM_NODEID"] = environment["SLURM_PROCID"] = "2";
  environment["SLURM_STEP_NUM_TASKS"] = "4";
  environment["SLURM_STEP_TASKS_PER_NODE"] = "1(x4)";
  environment["SLURM_LOCALID"] = "0";
  const auto text = plan({"--nproc-per-node=2", "true"});
  EXPECT_THAT(text, HasSubstr("\nnodes     4, this is node 2 if it can be\nmeeting   n1:20336-20343, job 42.0;"));
  EXPECT_THAT(
      text,
      HasSubstr("\nSlurm     job 42, step 0 (SLURM_JOB_ID, SLURM_STEP_ID)\n          4 nodes (SLURM_STEP_NODELIST)\n"));
  EXPECT_THAT(text, HasSubstr("\n          this is node 2 (SLURM_NODEID)\n"));
  EXPECT_THAT(text, HasSubstr("\n  DDPRUN_SLURM_STEP=42.0\n"));
  EXPECT_THAT(text, HasSubstr("with SIGKILL after 25 s\n          SIGUSR1: passed on"));
}

TEST_F(Plan, LogsSignalsBindingAndTheStoresGuestsAreTold) {
  const auto text = plan({"--nproc-per-node=8", "--log-dir=logs", "--rdzv-id=a", "-r3", "-t0:1,2-4:2",
                          "--ranks-filter=0,4-7", "--local-ranks-filter=1", "--duplicate-stdout-filters=loss",
                          "--log-line-prefix-template=${hostname}: ", "--forward-signals=SIGUSR1",
                          "--numa-binding=exclusive", "--store-allow=10.0.0.0/8", "true"});
  for (const auto* line :
       {"logs      logs/<start>_a/round_<n>/rank_<r>/\n", "to a file: stdout and stderr\n",
        "to a file and shown: stdout of local rank 0, stderr of local rank 2 to 4\n", "shown are ranks 0,4-7\n",
        "shown are local ranks 1\n", "lines of stdout with loss also to filtered_stdout.log\n",
        "lines begin with '${hostname}: '\n", "SIGUSR1: passed on to the workers\n",
        "binding   to cores of the GPU's NUMA node that no other worker has\n", "admits 10.0.0.0/8\n",
        "  DDPRUN_ROUND_DIRECTORY=logs/<start>_a/round_<n>\n"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(plan({"--log-dir=/dev/null", "true"}), HasSubstr("logs      no files\n"));
  EXPECT_THAT(plan({"--log-dir=/dev/null", "true"}), HasSubstr("  TORCHELASTIC_ERROR_FILE=\n"));
  EXPECT_THAT(plan({"--log-dir=/dev/null", "true"}), HasSubstr("  DDPRUN_ROUND_DIRECTORY=/dev/null\n"));
  EXPECT_THAT(plan({"true"}), Not(HasSubstr("DDPRUN_ROUND_DIRECTORY")));
  EXPECT_THAT(plan({"-t3", "true"}), HasSubstr("  DDPRUN_ROUND_DIRECTORY=<that of the round's log files>\n"));
  EXPECT_THAT(plan({"--no-prefix", "true"}), HasSubstr("no prefix before lines\n"));
  EXPECT_THAT(plan({"--tee=3", "true"}), HasSubstr("logs      in a folder for temporary files\n"));
}

TEST_F(Plan, ShowsWhatEachWorkerIsBoundTo) {
  Binding first, second;
  first.cpus = {0, 1, 2, 3};
  first.cores = {0, 1};
  first.memory_nodes = {0};
  first.core_share = 2;
  second.cpus = second.cores = {4};
  second.core_share = 1;
  const std::vector<std::string> options{"--numa-binding=node", "--nproc-per-node=3", "true"};
  auto text = plan(options, {}, {first, second, first});
  EXPECT_THAT(text, HasSubstr("binding   to the NUMA node of the worker's GPU\n"
                              "          worker 0: cores 0,1 (cpus 0-3), NUMA node 0\n"
                              "          worker 1: core 4 (cpu 4)\n"));
  EXPECT_THAT(text, HasSubstr("worker 0  LOCAL_RANK=0  RANK=0  ROLE_RANK=0  OMP_NUM_THREADS=2\n"));
  EXPECT_THAT(text, HasSubstr("worker 1  LOCAL_RANK=1  RANK=1  ROLE_RANK=1  OMP_NUM_THREADS=1\n"));
  EXPECT_THAT(plan(options, {"OMP_NUM_THREADS=3"}, {first, second, first}), Not(HasSubstr("OMP_NUM_THREADS")));
  first.core_share = {};  // --display-binding alone
  text = plan({"--display-binding", "true"}, {}, {first});
  EXPECT_THAT(text, HasSubstr("binding   none\n          worker 0: cpus 0-3, as ddprun itself\n"));
  EXPECT_THAT(text, Not(HasSubstr("OMP_NUM_THREADS")));
}

TEST_F(Plan, FailsWhereALaunchWould) {
  EXPECT_THROW(plan({"missing.py"}), UsageError);
  EXPECT_THROW(plan({"--virtual-local-rank", "--nproc-per-node=2", "true"}, {"CUDA_VISIBLE_DEVICES=3"}), UsageError);
}

}  // namespace
}  // namespace ddp::launcher
