// What ddprun takes from a step of Slurm where no option says it, and what it refuses.
#include "launcher/command_line/slurm_defaults.hpp"

#include <csignal>

#include "ddp/error.hpp"
#include "tests/unit/launcher/a_machine.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Mode = RendezvousConfig::Mode;
using Words = std::vector<std::string>;

class SlurmDefaults : public AMachine {
 protected:
  SlurmDefaults() {
    be_node(2, "n[1-4]", 4);
    environment["SLURM_JOB_ID"] = "42";
    environment["SLURM_STEP_ID"] = "3";
    environment["SLURM_LOCALID"] = "0";
  }

  // One task on each node.
  void be_node(int index, const std::string& list, int count) {
    environment["SLURM_STEP_NODELIST"] = list;
    environment["SLURM_STEP_NUM_NODES"] = environment["SLURM_STEP_NUM_TASKS"] = std::to_string(count);
    environment["SLURM_STEP_TASKS_PER_NODE"] = "1(x" + std::to_string(count) + ")";
    environment["SLURM_NODEID"] = environment["SLURM_PROCID"] = std::to_string(index);
  }

  void have_tasks_per_node(int count) {
    environment["SLURM_STEP_TASKS_PER_NODE"] = std::to_string(count) + "(x4)";
    environment["SLURM_STEP_NUM_TASKS"] = std::to_string(4 * count);
  }

  RendezvousConfig meet(Words options = {}) {
    options.insert(options.begin(), "--nproc-per-node=1");
    config = parse_options(std::move(options));
    return config.rendezvous;
  }

  std::string said() const {
    std::string out;
    for (const auto& notice : config.notices) out += notice + "\n";
    return out;
  }

  LaunchConfig config;
};

constexpr std::uint16_t kFirstPort = 20'000 + 8 * (42 + 131 * 3);

// --- the meeting ---

TEST_F(SlurmDefaults, NothingNeedsToBeSaid) {
  const auto meeting = meet();
  EXPECT_EQ(meeting.mode, Mode::dynamic);
  EXPECT_EQ(meeting.nodes_min, 4);
  EXPECT_EQ(meeting.nodes_max, 4);
  EXPECT_EQ(meeting.node_rank, 2);
  EXPECT_EQ(meeting.is_host, false);
  EXPECT_EQ(meeting.host, "n1");
  EXPECT_EQ(meeting.port, kFirstPort);
  EXPECT_EQ(meeting.port_count, 8);
  EXPECT_TRUE(meeting.may_be_slurm_node);
  EXPECT_EQ(meeting.run_id, "42.3");
  EXPECT_THAT(config.notices, IsEmpty());
  EXPECT_TRUE(config.in_slurm_step);
  EXPECT_EQ(config.slurm_step, "42.3");

  be_node(0, "n[1-4]", 4);
  EXPECT_EQ(meet().is_host, true);
  environment["SLURM_RESTART_COUNT"] = "2";
  EXPECT_EQ(meet().run_id, "42.3.r2");
  EXPECT_EQ(meet({"--rdzv-id=bert"}).slurm_run, "42.3.r2") << "two steps may have the same ports, and this id";
  EXPECT_EQ(meet({"--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500"}).slurm_run, "");
}

TEST_F(SlurmDefaults, WhatWasTakenIsToldWithItsVariable) {
  environment["SLURM_GPUS_ON_NODE"] = "8";
  (void)meet();
  EXPECT_THAT(
      config.slurm_facts,
      ElementsAre("job 42, step 3 (SLURM_JOB_ID, SLURM_STEP_ID)", "4 nodes (SLURM_STEP_NODELIST)",
                  AllOf(HasSubstr("at n1"), HasSubstr("23480 to 23487"), HasSubstr("SLURM_STEP_ID")),
                  "this is node 2 (SLURM_NODEID)", "id 42.3 (SLURM_JOB_ID, SLURM_STEP_ID)",
                  "8 GPUs (SLURM_GPUS_ON_NODE=8)", StartsWith("grace 25 s (Slurm's KillWait"), HasSubstr("SIGUSR1")));
  (void)meet({"--nnodes=4", "--rdzv-backend=c10d", "--rdzv-endpoint=elsewhere", "--rdzv-id=x", "--node-rank=2",
              "--shutdown-timeout=3", "--forward-signals=SIGUSR1"});
  EXPECT_THAT(config.slurm_facts, ElementsAre(HasSubstr("job 42"), HasSubstr("8 GPUs")));
}

TEST_F(SlurmDefaults, AStepOfOneNodeMeetsNobody) {
  be_node(0, "n7", 1);
  const auto meeting = meet();
  EXPECT_EQ(meeting.mode, Mode::local);
  EXPECT_EQ(meeting.run_id, "42.3");
  EXPECT_EQ(meeting.port_count, 1);
  EXPECT_FALSE(meeting.may_be_slurm_node);
  EXPECT_THAT(config.notices, IsEmpty());
  EXPECT_EQ(meet({"--rdzv-id=mine"}).run_id, "mine");
  EXPECT_EQ(meet({"--standalone"}).run_id, "") << "several of them may run side by side";
}

TEST_F(SlurmDefaults, FewerNodesThanTheStepHasLeaveSpares) {
  const auto meeting = meet({"--nnodes=2"});
  EXPECT_EQ(meeting.mode, Mode::dynamic);
  EXPECT_EQ(meeting.nodes_max, 2);
  EXPECT_EQ(meeting.node_rank, std::nullopt) << "a rank of 2 would be none of the job";
  EXPECT_EQ(meeting.is_host, false);
  be_node(1, "n[1-4]", 4);
  EXPECT_EQ(meet({"--nnodes=2"}).node_rank, 1);
  const auto range = meet({"--nnodes=2:4"});
  EXPECT_EQ(range.nodes_min, 2);
  EXPECT_EQ(range.nodes_max, 4);
  EXPECT_THAT(config.notices, IsEmpty());
}

TEST_F(SlurmDefaults, MoreNodesThanTheStepHasAreToldOf) {
  EXPECT_EQ(meet({"--nnodes=5"}).node_rank, std::nullopt) << "nodes of another step count from 0 too";
  EXPECT_THAT(said(), AllOf(HasSubstr("the step has 4 nodes"), HasSubstr("--nnodes=5")));
  be_node(0, "n1", 1);
  EXPECT_EQ(meet({"--nnodes=2"}).mode, Mode::dynamic);
  EXPECT_THAT(said(), HasSubstr("the step has 1 node, and --nnodes=2"));
}

TEST_F(SlurmDefaults, WhatMakesEachNodeAJobOfItsOwnIsToldOf) {
  for (const Words& options : std::vector<Words>{{"--standalone"},
                                                 {"--nnodes=1"},
                                                 {"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"},
                                                 {"--master-addr=127.0.0.1"}}) {
    SCOPED_TRACE(::testing::PrintToString(options));
    EXPECT_EQ(meet(options).mode, Mode::local);
    EXPECT_THAT(said(),
                AllOf(HasSubstr("each of the step's 4 nodes runs a job of its own"), HasSubstr(options.back())));
  }
}

TEST_F(SlurmDefaults, AnEndpointForOneNodeMakesEachAJobOfItsOwnToo) {
  EXPECT_EQ(meet({"--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500"}).nodes_max, 1);
  EXPECT_THAT(said(), HasSubstr("each of the step's 4 nodes runs a job of its own: --nnodes=1"));
  be_node(0, "n1", 1);
  (void)meet({"--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500", "--rdzv-id=x"});
  EXPECT_THAT(config.notices, IsEmpty());
}

TEST_F(SlurmDefaults, NodesOnOneMachineMayMeetThere) {
  const auto meeting = meet({"--nnodes=4", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:1234"});
  EXPECT_EQ(meeting.node_rank, 2);
  EXPECT_EQ(meeting.run_id, "42.3");
  EXPECT_FALSE(meeting.may_be_slurm_node);
  EXPECT_THAT(config.notices, IsEmpty());
}

TEST_F(SlurmDefaults, SettingsOfTheMeetingLeaveTheRestToSlurm) {
  auto meeting = meet({"--rdzv-conf=join_timeout=7"});
  EXPECT_EQ(meeting.host, "n1");
  EXPECT_EQ(meeting.join_timeout, 7s);
  EXPECT_EQ(meeting.is_host, false);
  EXPECT_EQ(meet({"--rdzv-conf=is_host=true"}).is_host, true);
  EXPECT_EQ(meet({"--rdzv-id=mine"}).run_id, "mine");
  EXPECT_EQ(meet({"--node-rank=3"}).node_rank, 3);
  EXPECT_EQ(config.rendezvous.is_host, false);
  EXPECT_EQ(meet({"--rdzv-backend=c10d"}).port_count, 8);
  EXPECT_EQ(meet({"--rdzv-endpoint="}).port_count, 8) << "an empty one is none";
}

TEST_F(SlurmDefaults, AnEndpointThatIsGivenWins) {
  const auto meeting = meet({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=42", "--rdzv-endpoint=n1:29500"});
  EXPECT_EQ(meeting.host, "n1");
  EXPECT_EQ(meeting.port, 29500);
  EXPECT_EQ(meeting.port_count, 1);
  EXPECT_EQ(meeting.run_id, "42");
  EXPECT_TRUE(meeting.may_be_slurm_node);
  be_node(1, "n[1-2]", 2);
  const auto second = meet({"--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500"});
  EXPECT_EQ(second.nodes_max, 2);
  EXPECT_EQ(second.node_rank, 1);
  EXPECT_EQ(second.run_id, "42.3");
  EXPECT_EQ(second.is_host, false) << "by its name, whatever that resolves to";
  EXPECT_THAT(config.notices, IsEmpty());
  be_node(0, "n[1-2]", 2);
  EXPECT_EQ(meet({"--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500"}).is_host, true);
  EXPECT_EQ(meet({"--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:29500"}).is_host, std::nullopt);
  EXPECT_EQ(meet({"--rdzv-backend=c10d", "--rdzv-endpoint=login:29400"}).is_host, std::nullopt);
}

TEST_F(SlurmDefaults, AStaticMeetingGetsWhatItLacks) {
  for (const Words& options : std::vector<Words>{{"--master-port=1234"},
                                                 {"--rdzv-backend=static", "--master-port=1234"},
                                                 {"--master-addr=n1", "--master-port=1234"},
                                                 {"--rdzv-endpoint=n1:1234"}}) {
    SCOPED_TRACE(::testing::PrintToString(options));
    const auto meeting = meet(options);
    EXPECT_EQ(meeting.mode, Mode::fixed);
    EXPECT_EQ(meeting.nodes_max, 4);
    EXPECT_EQ(meeting.node_rank, 2);
    EXPECT_EQ(meeting.host, "n1");
    EXPECT_EQ(meeting.port, 1234);
    EXPECT_EQ(meeting.port_count, 1);
    EXPECT_EQ(meeting.run_id, "42.3");
    EXPECT_TRUE(meeting.may_be_slurm_node);
    EXPECT_THAT(config.notices, IsEmpty());
  }
}

TEST_F(SlurmDefaults, AStaticMeetingHasNoSpares_WhichAllNodesSayAlike) {
  for (const int index : {0, 3}) {
    be_node(index, "n[1-4]", 4);
    for (const char* where : {"--master-port=29500", "--master-addr=n1", "--rdzv-endpoint=n1:29500"})
      expect_usage_error(
          [&] {
            (void)meet({"--nnodes=2", where});
          },
          "leaves out 2 of the step's 4 nodes", "--nnodes=2", "--rdzv-backend=c10d");
  }
  EXPECT_EQ(meet({"--nnodes=2", "--node-rank=1", "--master-addr=n1"}).node_rank, 1) << "they are chosen";
  EXPECT_EQ(meet({"--nnodes=2", "--rdzv-conf=rank=1", "--master-addr=n1"}).node_rank, 1);
  EXPECT_EQ(meet({"--nnodes=2", "--rdzv-backend=c10d", "--master-port=29500"}).port_count, 8);
}

// Node 0 is the one that serves.
TEST_F(SlurmDefaults, RanksOfAStaticMeetingBeginAtTheNodeThatItNames) {
  const struct { int index, rank; } cases[] = {{0, 3}, {1, 0}, {2, 1}, {3, 2}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.index);
    be_node(c.index, "n[1-4]", 4);
    EXPECT_EQ(meet({"--master-addr=n2", "--master-port=29500"}).node_rank, c.rank);
    EXPECT_THAT(config.slurm_facts,
                Contains("this is node " + std::to_string(c.rank) + ", counted from n2 (SLURM_NODEID)"));
    EXPECT_EQ(meet({"--rdzv-endpoint=n2.cluster:29500"}).node_rank, c.rank);
    EXPECT_EQ(meet({"--rdzv-endpoint=elsewhere:29500"}).node_rank, c.index);
    EXPECT_EQ(meet({"--master-addr=10.0.0.2"}).node_rank, c.index) << "no name of a node";
    EXPECT_EQ(meet({"--rdzv-backend=c10d", "--rdzv-endpoint=n2:29500"}).node_rank, c.index) << "c10d has no such rule";
    EXPECT_EQ(meet({"--master-addr=n2", "--node-rank=2"}).node_rank, 2);
    EXPECT_EQ(meet({"--master-addr=n2", "--rdzv-conf=rank=2"}).node_rank, 2);
  }
  be_node(2, "n[1-4]", 4);
  environment["PET_NODE_RANK"] = "1";
  EXPECT_EQ(meet({"--master-addr=n2"}).node_rank, 1);
  environment["PET_NODE_RANK"] = "2";
  expect_usage_error([this] { (void)meet({"--master-addr=n2"}); },
                     "that it is node 1 of 4 (SLURM_NODEID=2, counted from n2)", "PET_NODE_RANK",
                     "unset PET_NODE_RANK");
  environment.erase("PET_NODE_RANK");
  be_node(1, "9,10", 2);
  EXPECT_EQ(meet({"--master-addr=10.0.0.9"}).node_rank, 1) << "an address is no long name";
  EXPECT_EQ(meet({"--master-addr=10.cluster"}).node_rank, 0);
}

// As when each node has an srun of its own, and torchrun's options say the rest.
TEST_F(SlurmDefaults, AJobOfSeveralStepsGetsNeitherRankNorIdFromOneOfThem) {
  be_node(0, "n3", 1);
  auto meeting = meet({"--nnodes=4", "--node-rank=2", "--master-addr=n1"});
  EXPECT_EQ(meeting.mode, Mode::fixed);
  EXPECT_EQ(meeting.node_rank, 2);
  EXPECT_EQ(meeting.run_id, "none");
  meeting = meet({"--nnodes=4", "--rdzv-backend=c10d", "--rdzv-endpoint=n1"});
  EXPECT_EQ(meeting.node_rank, std::nullopt);
  EXPECT_EQ(meeting.run_id, "none");
  EXPECT_EQ(meeting.is_host, std::nullopt);
  be_node(1, "n[3-4]", 2);
  for (const char* name : {"DDPRUN_NODE_RANK", "PET_NODE_RANK"}) {
    environment[name] = "3";
    EXPECT_EQ(meet({"--nnodes=4", "--rdzv-backend=c10d", "--rdzv-endpoint=n1"}).node_rank, 3) << name;
    environment.erase(name);
  }
}

// --- what does not fit ---

TEST_F(SlurmDefaults, SeveralTasksOfANodeAreRefused) {
  have_tasks_per_node(8);
  expect_usage_error([this] { (void)meet(); }, "srun started 32 ddprun on 4 nodes, 8 of them here",
                     "SLURM_STEP_TASKS_PER_NODE", "--ntasks-per-node=1");
  expect_usage_error([this] { (void)meet({"--nnodes=4"}); }, "8 of them here", "SLURM", "docs/without_ddprun.md");
  EXPECT_EQ(meet({"--standalone"}).mode, Mode::local);
  EXPECT_EQ(meet({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500"}).is_host, std::nullopt);
}

TEST_F(SlurmDefaults, SeveralTasksOfANodeMayEachBeAJob_WithANumberOfWorkers) {
  have_tasks_per_node(8);
  EXPECT_EQ(meet({"--nnodes=1"}).mode, Mode::local);
  EXPECT_EQ(config.rendezvous.run_id, "") << "they run side by side";
  EXPECT_THAT(config.notices, ElementsAre("each of the step's 32 tasks runs a job of its own: --nnodes=1"));
  const auto refused = [this](const Words& options) {
    expect_usage_error([&] { (void)parse_options(options); }, "8 of them here", "SLURM", "`--standalone`");
  };
  refused({"--nnodes=1"});
  refused({"--nnodes=1", "--nproc-per-node=gpu"});
  refused({"--nnodes=2", "--nproc-per-node=1"});
  be_node(0, "n1", 1);
  environment["SLURM_STEP_TASKS_PER_NODE"] = environment["SLURM_STEP_NUM_TASKS"] = "8";
  EXPECT_EQ(meet({"--nnodes=1"}).run_id, "");
  EXPECT_THAT(config.notices, ElementsAre(HasSubstr("the step's 8 tasks")));
  environment["PET_NPROC_PER_NODE"] = "1";
  refused({"--nnodes=1"});
  environment["PET_NNODES"] = "1";
  refused({"--nproc-per-node=1"});
}

TEST_F(SlurmDefaults, WhatIsLeftOverFromAnotherLauncherIsRefused) {
  const struct {
    const char* name;
    const char* value;
    const char* says;
    const char* remedy;
  } cases[] = {
      {"PET_NODE_RANK", "0",
       "PET_NODE_RANK=0 says that this is node 0, and Slurm that it is node 2 of 4 (SLURM_NODEID=2)",
       "`--node-rank=0`"},
      {"PET_NNODES", "2", "says that the job has 2 nodes, and Slurm that the step has 4 nodes", "unset PET_NNODES"},
      {"PET_NNODES", "5:8", "says that the job has 5 to 8 nodes", "`--nnodes=5:8`"},
      {"PET_STANDALONE", "1", "says that the job has this node only", "`--standalone`"},
      {"PET_MASTER_ADDR", "localhost", "says that the job has this node only", "--master-addr=localhost"},
      {"PET_RDZV_ENDPOINT", "localhost:0", "says that the job has this node only", "unset PET_RDZV_ENDPOINT"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.name) + "=" + c.value);
    environment[c.name] = c.value;
    expect_usage_error([this] { (void)meet(); }, c.says, c.name, c.remedy);
    environment.erase(c.name);
  }
  environment["PET_NODE_RANK"] = "0";
  EXPECT_EQ(meet({"--node-rank=1"}).node_rank, 1) << "the command line goes before it";
  environment["PET_NODE_RANK"] = "2";
  environment["PET_NNODES"] = "1:4";
  EXPECT_EQ(meet().nodes_min, 1);
  environment["DDPRUN_NNODES"] = "2";
  EXPECT_EQ(meet().nodes_max, 2) << "ddprun's own variables are meant";
  environment["DDPRUN_NODE_RANK"] = "1";
  EXPECT_EQ(meet().node_rank, 1);
}

TEST_F(SlurmDefaults, AnEndpointDoesNotExcuseANumberOfNodesThatIsLeftOver) {
  const Words endpoint{"--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500"};
  for (const char* nodes : {"1", "2", "1:3"}) {
    environment["PET_NNODES"] = nodes;
    expect_usage_error([&] { (void)meet(endpoint); }, "and Slurm that the step has 4 nodes", "PET_NNODES",
                       "unset PET_NNODES");
  }
  environment["PET_NNODES"] = "8";
  EXPECT_EQ(meet(endpoint).nodes_max, 8) << "other steps may bring the rest";
  environment["PET_NNODES"] = "1";
  EXPECT_EQ(meet({"--standalone"}).mode, Mode::local);
  EXPECT_EQ(meet({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"}).mode, Mode::local);
}

TEST_F(SlurmDefaults, WrongVariablesAreRefused_UnlessTheOptionsSayAllThatIsNeeded) {
  environment["SLURM_STEP_NODELIST"] = "n[1-3]";
  try {
    (void)meet();
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("SLURM_STEP_NODELIST"), HasSubstr("\nwhere: "), HasSubstr("\ntry:   ")));
  }
  EXPECT_EQ(meet({"--standalone"}).mode, Mode::local);
  EXPECT_THAT(said(), HasSubstr("Slurm's step are left alone: SLURM_STEP_NODELIST"));
  EXPECT_THAT(said(), Not(HasSubstr("\ntry:")));
  EXPECT_TRUE(config.in_slurm_step) << "its signals come all the same";
  EXPECT_EQ(meet({"--nnodes=2", "--node-rank=1", "--master-addr=n1"}).node_rank, 1);
  environment["SLURM_STEP_NODELIST"] = "n[1-4]";
  environment["SLURM_HET_SIZE"] = "2";
  EXPECT_THROW((void)meet(), InvalidArgument);
  EXPECT_NO_THROW((void)meet({"--standalone"}));
  EXPECT_NO_THROW((void)parse_command_line({"--help"}, lookup(), {}));
}

TEST_F(SlurmDefaults, WithinAWorkerTheyAreTheOuterDdpruns) {
  environment["DDPRUN_SLURM_STEP"] = "42.3";
  EXPECT_EQ(meet().mode, Mode::local);
  EXPECT_EQ(config.rendezvous.run_id, "");
  EXPECT_EQ(config.slurm_step, "42.3") << "its workers inherit them too";
  EXPECT_TRUE(config.in_slurm_step) << "Slurm signals it as it does every process of the step";
  EXPECT_FALSE(config.leaves_when_stopped) << "scancel signals all nodes";
  EXPECT_EQ(config.grace, 25s);
  EXPECT_THAT(config.forward_signals, ElementsAre(SIGUSR1));
  EXPECT_THAT(config.notices, ElementsAre(HasSubstr("SLURM_* are those of the ddprun of step 42.3")));
  environment["DDPRUN_SLURM_STEP"] = "42.1";
  EXPECT_EQ(meet().run_id, "42.3") << "srun started this one from a worker of another step";
}

TEST_F(SlurmDefaults, ABatchShellIsNoStep) {
  environment.erase("SLURM_STEP_ID");
  environment["SLURM_JOB_NUM_NODES"] = "4";
  EXPECT_EQ(meet().mode, Mode::local);
  EXPECT_FALSE(config.in_slurm_step);
  EXPECT_EQ(config.slurm_step, "42");
  EXPECT_THAT(config.forward_signals, IsEmpty());
  EXPECT_EQ(config.grace, 25s) << "the job's time limit holds there too";
  EXPECT_THAT(config.slurm_facts, ElementsAre(StartsWith("grace 25 s")));
  EXPECT_THAT(config.notices,
              ElementsAre(AllOf(HasSubstr("job 42 has 4 nodes"), HasSubstr("`srun --ntasks-per-node=1 ddprun"))));
  (void)meet({"--standalone"});
  EXPECT_THAT(config.notices, IsEmpty());
  environment["SLURM_JOB_NUM_NODES"] = "1";
  (void)meet();
  EXPECT_THAT(config.notices, IsEmpty());
}

TEST_F(SlurmDefaults, WithoutSlurmNothingIsAsBefore_NotASingleFact) {
  environment = {{"PATH", "/usr/bin:/bin"}};
  EXPECT_EQ(meet().mode, Mode::local);
  EXPECT_FALSE(config.in_slurm_step);
  EXPECT_EQ(config.slurm_step, "");
  EXPECT_EQ(config.grace, 30s);
  EXPECT_THAT(config.slurm_facts, IsEmpty());
  EXPECT_THAT(config.notices, IsEmpty());
}

// --- the machine ---

TEST_F(SlurmDefaults, OneWorkerForEachGpuOfTheStep) {
  environment["SLURM_GPUS_ON_NODE"] = "4";
  EXPECT_EQ(parse({"true"}).workers, 4);
  EXPECT_EQ(parse_options({"--nproc-per-node=gpu"}).workers, 4);
  gpus = 8;
  EXPECT_EQ(parse({"true"}).workers, 4) << "the others are not this step's";
  gpus = 2;
  EXPECT_EQ(parse({"true"}).workers, 2) << "CUDA_VISIBLE_DEVICES may name fewer";
  environment["SLURM_GPUS_ON_NODE"] = "0";
  EXPECT_EQ(parse({"true"}).workers, 2);
}

TEST_F(SlurmDefaults, GpusThatTheKernelDoesNotNameCountUnlessTheyAreHidden) {
  environment["SLURM_GPUS_ON_NODE"] = "8";
  const struct {
    const char* visible;
    int workers;
  } cases[] = {{"", 1}, {"-1", 1}, {"NoDevFiles", 1}, {"0,1", 2}, {"0,1,2,3,4,5,6,7", 8}, {"6,7", 2}};
  EXPECT_EQ(parse({"true"}).workers, 8);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.visible);
    environment["CUDA_VISIBLE_DEVICES"] = c.visible;
    config = parse({"true"});
    EXPECT_EQ(config.workers, c.workers);
    EXPECT_THAT(config.slurm_facts, Contains(HasSubstr("(SLURM_GPUS_ON_NODE=8")));
  }
  environment["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_THROW((void)parse_options({"--nproc-per-node=gpu"}), UsageError);
  EXPECT_THAT(parse({"true"}).slurm_facts, Contains("no GPU (SLURM_GPUS_ON_NODE=8, CUDA_VISIBLE_DEVICES='')"));
}

TEST_F(SlurmDefaults, AWorkerForEachCpuOfTheTask) {
  cpu_count = 64;
  EXPECT_EQ(parse_options({"--nproc-per-node=cpu"}).workers, 64);
  environment["SLURM_CPUS_ON_NODE"] = "16";
  EXPECT_EQ(parse_options({"--nproc-per-node=cpu"}).workers, 16);
  environment["SLURM_CPUS_PER_TASK"] = "8";
  EXPECT_EQ(parse_options({"--nproc-per-node=cpu"}).workers, 8);
  EXPECT_EQ(parse_options({"--nproc-per-node=auto"}).workers, 8);
  cpu_count = 2;
  EXPECT_EQ(parse_options({"--nproc-per-node=cpu"}).workers, 2) << "no more than it may run on";
}

TEST_F(SlurmDefaults, WorkersThatShareOneCoreAreToldWhatSrunLacked) {
  one_core = true;
  config = parse_options({"--nproc-per-node=4"});
  EXPECT_THAT(said(), AllOf(HasSubstr("all 4 workers share one core"), HasSubstr("`srun --cpus-per-task=4`"),
                            Not(HasSubstr("sbatch"))));
  environment["SLURM_CPUS_PER_TASK"] = "8";
  config = parse_options({"--nproc-per-node=4"});
  EXPECT_THAT(said(), AllOf(HasSubstr("`srun --cpus-per-task=8`"), HasSubstr("SLURM_CPUS_PER_TASK=8 is sbatch's")));
}

// --- the end ---

TEST_F(SlurmDefaults, TheGraceIsSlurmsLess5Seconds) {
  const auto grace = [this] { return parse({"true"}).grace; };
  EXPECT_EQ(grace(), 25s);
  texts["/etc/slurm/slurm.conf"] = "ClusterName=c\n  killwait = 60 # s\n#KillWait=7\nNodeName=n1 KillWait=9\n";
  EXPECT_EQ(grace(), 55s);
  environment["SLURM_CONF"] = "/run/slurm/conf/slurm.conf";
  EXPECT_EQ(grace(), 25s) << "that file can't be read";
  for (const auto& [text, want] :
       std::vector<std::pair<std::string, std::chrono::seconds>>{{"KillWait=20\nKillWait=40", 35s},
                                                                 {"KillWait=3", 1s},
                                                                 {"KillWait=0", 1s},
                                                                 {"KillWait=", 25s},
                                                                 {"KillWait=x", 25s},
                                                                 {"KillWaits=90", 25s}}) {
    texts["/run/slurm/conf/slurm.conf"] = text;
    EXPECT_EQ(grace(), want) << text;
  }
  environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "12";
  EXPECT_EQ(grace(), 12s);
  EXPECT_EQ(parse_options({"--shutdown-timeout=3"}).grace, 3s);
}

TEST_F(SlurmDefaults, Sigusr1SaysThatTimeIsShort_UnlessItStopsTheJob) {
  EXPECT_THAT(parse({"true"}).forward_signals, ElementsAre(SIGUSR1));
  EXPECT_THAT(parse_options({"--signals-to-handle=TERM,USR1"}).forward_signals, IsEmpty());
  EXPECT_THAT(parse_options({"--forward-signals=SIGUSR2"}).forward_signals, ElementsAre(SIGUSR2, SIGUSR1));
}

TEST_F(SlurmDefaults, WhereSrunEndsAllWithTheFirst_NodesThatMayFailAreToldOfIt) {
  environment["SLURM_KILL_BAD_EXIT"] = "1";
  for (const char* nodes : {"--nnodes=2:4", "--nnodes=3"}) {
    (void)meet({nodes});
    EXPECT_THAT(said(), AllOf(HasSubstr("SLURM_KILL_BAD_EXIT=1"), HasSubstr("--no-kill --kill-on-bad-exit=0 --wait=0")))
        << nodes;
  }
  (void)meet();
  EXPECT_THAT(config.notices, IsEmpty()) << "all of them are needed";
  environment["SLURM_KILL_BAD_EXIT"] = "0";
  (void)meet({"--nnodes=2:4"});
  EXPECT_THAT(config.notices, IsEmpty());
}

}  // namespace
}  // namespace ddp::launcher
