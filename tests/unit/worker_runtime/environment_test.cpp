#include "worker_runtime/core/bootstrap/environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddp::core {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch_with(const Variables& variables) {
  const auto lookup = [&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional<std::string>(at->second);
  };
  const auto read_file = [](const std::string& path) { return path == "/nodes" ? "n3\nn3\nn1\nn1\n" : ""; };
  return launch_from(
      lookup, [] { return std::string("of process 77 begun at 1234"); }, read_file);
}

const Variables kTwoRanks{{"RANK", "1"},
                          {"WORLD_SIZE", "2"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "::1"},
                          {"MASTER_PORT", "29400"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

// kTwoRanks, but for some variables; an empty optional unsets one.
Variables two_ranks_but(const std::map<std::string, std::optional<std::string>>& changes) {
  Variables variables = kTwoRanks;
  for (const auto& [name, value] : changes) {
    variables.erase(name);
    if (value) variables[name] = *value;
  }
  return variables;
}

TEST(Environment, SaysWhoThisProcessIs) {
  const Launch launch = launch_with(
      two_ranks_but({{"DDPRUN_ROUND_ID", "1763723112-9f3a17c2b4d8e6f0-3"}, {"TORCHELASTIC_RESTART_COUNT", "4"}}));
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.size, 2);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 2);
  ASSERT_TRUE(launch.store);
  EXPECT_EQ(launch.store->host, "::1");
  EXPECT_EQ(launch.store->port, 29400);
  EXPECT_EQ(launch.round, (RoundId{1763723112, 0x9f3a17c2b4d8e6f0, 3}));
  EXPECT_EQ(launch.restart_count, 4);
}

TEST(Environment, WithoutAnyOfItsVariablesIsAGroupOfOne) {
  const Launch launch = launch_with({{"PATH", "/bin"}, {"TORCHELASTIC_RESTART_COUNT", "nonsense"}});
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.local_size, 1);
  EXPECT_FALSE(launch.store);
  EXPECT_FALSE(launch.round);
}

TEST(Environment, LocalVariablesDefaultToTheGlobalOnesWhereAllRanksAreOnOneHost) {
  for (const char* address : {"::1", "127.0.0.1", "localhost"}) {
    const Launch launch =
        launch_with(two_ranks_but({{"LOCAL_RANK", {}}, {"LOCAL_WORLD_SIZE", {}}, {"MASTER_ADDR", address}}));
    EXPECT_EQ(launch.local_rank, 1);
    EXPECT_EQ(launch.local_size, 2);
  }
}

TEST(Environment, LocalVariablesAreFoundOutWhereTheRanksMayBeOnSeveralHosts) {
  const Launch launch = launch_with(two_ranks_but(
      {{"LOCAL_RANK", {}}, {"LOCAL_WORLD_SIZE", {}}, {"MASTER_ADDR", "node0"}, {"DDPRUN_PORT_RANGE", "29500-29600"}}));
  EXPECT_EQ(launch.local_rank, -1);
  EXPECT_EQ(launch.local_size, 0);
  EXPECT_EQ(launch.ports.min, 29500);
  for (const auto* missing : {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    const Launch half = launch_with(two_ranks_but({{missing, {}}, {"MASTER_ADDR", "node0"}}));
    EXPECT_EQ(half.local_rank, -1) << missing;
    EXPECT_EQ(half.local_size, 0) << missing;
  }
}

// As a person exports them, or a script that starts ranks by itself.
TEST(Environment, ByHandRankZeroServesTheStore) {
  const auto by_hand = [](const std::map<std::string, std::optional<std::string>>& changes) {
    auto all = changes;
    all["TORCHELASTIC_USE_AGENT_STORE"] = {};
    return launch_with(two_ranks_but(all));
  };
  const Launch there = by_hand({{"MASTER_ADDR", "node0"}, {"LOCAL_RANK", {}}, {"LOCAL_WORLD_SIZE", {}}});
  EXPECT_FALSE(there.store);
  ASSERT_TRUE(there.own_store);
  EXPECT_EQ(there.own_store->host, "node0");
  EXPECT_EQ(there.own_store->first_port, 29400);
  EXPECT_EQ(there.own_store->port_count, 1);
  EXPECT_EQ(there.own_store->rank_name, "RANK");
  EXPECT_FALSE(there.own_store->is_here);
  EXPECT_TRUE(by_hand({{"RANK", "0"}, {"MASTER_ADDR", "node0"}}).own_store->is_here);
  EXPECT_TRUE(by_hand({{"MASTER_ADDR", "node0"}}).own_store->is_here) << "both ranks are on one host";
  EXPECT_EQ(by_hand({}).own_store->host, "") << "at ::1, and all are here, so rank 0 listens on loopback";
  const Launch unknown = by_hand({{"LOCAL_RANK", {}}, {"LOCAL_WORLD_SIZE", {}}});
  EXPECT_EQ(unknown.own_store->host, "::1") << "others may know rank 0 by its name";
  EXPECT_EQ(unknown.local_size, 0);
  // As torchrun says it where its agent serves none.
  EXPECT_TRUE(launch_with(two_ranks_but({{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).own_store);
}

TEST(Environment, ASingleRankNeedsNoMaster) {
  const Launch launch = launch_with({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.local_rank, 0);
  EXPECT_EQ(launch.local_size, 1);
  EXPECT_FALSE(launch.store);
  EXPECT_FALSE(launch.own_store);
}

TEST(Environment, WhatIsWrongIsNamedWithItsValue) {
  const struct {
    const char* variable;
    std::optional<std::string> value;
    std::vector<std::string> told;
  } cases[] = {
      {"RANK", {}, {"RANK is not set", "WORLD_SIZE", "ddprun"}},
      {"WORLD_SIZE", {}, {"WORLD_SIZE is not set"}},
      {"MASTER_ADDR", {}, {"MASTER_ADDR is not set"}},
      {"MASTER_PORT", {}, {"MASTER_PORT is not set"}},
      {"RANK", "2", {"RANK is 2, but WORLD_SIZE is 2", "0 to WORLD_SIZE - 1"}},
      {"RANK", "-1", {"RANK is '-1'"}},
      {"RANK", "+1", {"RANK is '+1'"}},
      {"RANK", "", {"RANK is ''"}},
      {"RANK", " 1", {"RANK is ' 1'"}},
      {"RANK", "1 ", {"RANK is '1 '"}},
      {"RANK", "0x1", {"RANK is '0x1'"}},
      {"RANK", "-0", {"RANK is '-0'"}},
      {"RANK", "99999999999999999999", {"RANK is '99999999999999999999'"}},
      {"WORLD_SIZE", "0", {"WORLD_SIZE is '0'", "from 1 to"}},
      {"WORLD_SIZE", "two", {"WORLD_SIZE is 'two'"}},
      {"WORLD_SIZE", "1000001", {"from 1 to 1000000"}},
      {"LOCAL_RANK", "2", {"LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2"}},
      {"LOCAL_WORLD_SIZE", "1", {"LOCAL_RANK is 1, but LOCAL_WORLD_SIZE is 1"}},
      {"LOCAL_RANK", "x", {"LOCAL_RANK is 'x'"}},
      {"LOCAL_WORLD_SIZE", "3", {"LOCAL_WORLD_SIZE is 3, but WORLD_SIZE is 2"}},
      {"MASTER_ADDR", "", {"MASTER_ADDR is empty"}},
      {"MASTER_PORT", "0", {"MASTER_PORT is '0'", "from 1 to 65535"}},
      {"MASTER_PORT", "65536", {"MASTER_PORT is '65536'"}},
      {"DDPRUN_ROUND_ID", "3", {"DDPRUN_ROUND_ID is '3'"}},
      {"TORCHELASTIC_RESTART_COUNT", "-1", {"TORCHELASTIC_RESTART_COUNT is '-1'"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.variable) + "=" + c.value.value_or("(unset)"));
    try {
      launch_with(two_ranks_but({{c.variable, c.value}}));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      for (const std::string& told : c.told) EXPECT_THAT(error.what(), ::testing::HasSubstr(told));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("\ntry:   "));
    }
  }
}

TEST(Environment, OfSeveralHostsSaysWhereToListen) {
  const auto of_two_hosts = [](const std::string& ports) {
    return launch_with(two_ranks_but(
        {{"LOCAL_WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"DDPRUN_PORT_RANGE", ports}, {"DDP_SOCKET_IFNAME", "eth1"}}));
  };
  const Launch launch = of_two_hosts("29500-29600");
  EXPECT_EQ(launch.local_size, 1);
  EXPECT_EQ(launch.ports.min, 29500);
  EXPECT_EQ(launch.ports.max, 29600);
  EXPECT_EQ(launch.interface, "eth1");
  for (const char* ports : {"", "29500", "29600-29500", "0-1", "1-65536", "a-b", "1-2-3"}) {
    SCOPED_TRACE(ports);
    EXPECT_THROW(of_two_hosts(ports), InvalidArgument);
  }
  EXPECT_EQ(launch_with(two_ranks_but({{"DDPRUN_PORT_RANGE", "unused"}})).ports.min, 0);
}

TEST(Environment, OnlyDdpPtraceOpensThisProcess) {
  EXPECT_FALSE(launch_with(two_ranks_but({})).lets_any_read);
  EXPECT_FALSE(launch_with(two_ranks_but({{"DDP_PTRACE", ""}})).lets_any_read);
  EXPECT_TRUE(launch_with(two_ranks_but({{"DDP_PTRACE", "any"}})).lets_any_read);
  for (const char* value : {"all", "1", "ANY"}) {
    SCOPED_TRACE(value);
    EXPECT_THROW(launch_with(two_ranks_but({{"DDP_PTRACE", value}})), InvalidArgument);
  }
}

TEST(Environment, AnEarlierStartsKeysAreOutOfSight) {
  const auto prefix = [](const std::map<std::string, std::optional<std::string>>& changes) {
    return store_key_prefix(launch_with(two_ranks_but(changes)));
  };
  EXPECT_EQ(prefix({}), "ddp/restart_0/");
  EXPECT_EQ(prefix({{"TORCHELASTIC_RESTART_COUNT", "2"}}), "ddp/restart_2/");
  EXPECT_EQ(prefix({{"TORCHELASTIC_RESTART_COUNT", "2"}, {"DDPRUN_ROUND_ID", "7-00000000000000ff-1"}}),
            "ddp/round_7-00000000000000ff-1/");
}

// --- without torchrun's names ---

Variables with(Variables variables, const std::map<std::string, std::optional<std::string>>& changes) {
  for (const auto& [name, value] : changes) {
    variables.erase(name);
    if (value) variables[name] = *value;
  }
  return variables;
}

std::string error_of(const Variables& variables) {
  try {
    launch_with(variables);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "2"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"PMIX_NAMESPACE", "1490092033"},
                         {"OMPI_MCA_orte_precondition_transports", "3eb2200d923c4d0d-45788b0c8b60e5c2"}};
const Variables kHydra{
    {"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}, {"PMI_FD", "6"}};
const Variables kTask{
    {"SLURM_JOB_ID", "42"},        {"SLURM_STEP_ID", "1"},        {"SLURM_STEP_NODELIST", "n[1-2]"},
    {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_TASKS_PER_NODE", "1,3"},
    {"SLURM_NODEID", "1"},         {"SLURM_PROCID", "2"},         {"SLURM_LOCALID", "1"}};
const Variables kOfABatchShell{{"SLURM_JOB_ID", "42"},           {"SLURM_NTASKS", "4"},         {"SLURM_PROCID", "0"},
                               {"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_TASKS_PER_NODE", "2"}, {"SLURM_NODEID", "0"}};

TEST(EnvironmentOfMpirun, OfOpenMpiSaysWhoThisProcessIs) {
  const Launch launch = launch_with(kOpenMpi);
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.local_rank, 2);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_FALSE(launch.store);
  ASSERT_TRUE(launch.own_store);
  EXPECT_EQ(launch.own_store->job, "Open MPI's mpirun 1490092033 3eb2200d923c4d0d-45788b0c8b60e5c2");
  EXPECT_EQ(launch.own_store->host, "");
  EXPECT_TRUE(launch.own_store->is_here);
  EXPECT_EQ(launch.own_store->port_count, 8);
  EXPECT_GE(launch.own_store->first_port, 20'000);
  EXPECT_LE(launch.own_store->first_port, 31'992);
  EXPECT_EQ(launch.own_store->rank_name, "OMPI_COMM_WORLD_RANK");
  EXPECT_FALSE(launch_with(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"},
                                           {"OMPI_COMM_WORLD_SIZE", "1"},
                                           {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}))
                   .own_store);
}

TEST(EnvironmentOfMpirun, OfHydraTheJobIsNamedByWhatStartedIt) {
  const Launch launch = launch_with(kHydra);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  ASSERT_TRUE(launch.own_store);
  EXPECT_EQ(launch.own_store->job, "MPICH's mpirun of process 77 begun at 1234");
  EXPECT_TRUE(launch.own_store->is_here);
}

TEST(EnvironmentOfMpirun, OverSeveralHostsAsksForMasterAddrAndMasterPort) {
  for (const auto& variables :
       {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
        with(kHydra, {{"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}})}) {
    const auto error = error_of(variables);
    EXPECT_THAT(error, ::testing::HasSubstr("several hosts"));
    EXPECT_THAT(error, ::testing::HasSubstr("\nwhere: "));
    EXPECT_THAT(error, ::testing::HasSubstr("\ntry:   MASTER_ADDR="));
    EXPECT_THAT(error, ::testing::HasSubstr("MASTER_PORT="));

    const Launch launch = launch_with(with(variables, {{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}}));
    ASSERT_TRUE(launch.own_store);
    EXPECT_FALSE(launch.store);
    EXPECT_EQ(launch.own_store->host, "node0");
    EXPECT_FALSE(launch.own_store->is_here);
    EXPECT_EQ(launch.own_store->first_port, 29500);
    EXPECT_EQ(launch.own_store->port_count, 1);
    EXPECT_THAT(error_of(with(variables, {{"MASTER_PORT", "29500"}})),
                ::testing::HasSubstr("MASTER_PORT is set, but MASTER_ADDR is not"));
  }
  // What started the ranks is another process on every host, so it names no job there.
  EXPECT_EQ(launch_with(with(kHydra, {{"MPI_LOCALRANKID", "0"},
                                      {"MPI_LOCALNRANKS", "2"},
                                      {"MASTER_ADDR", "node0"},
                                      {"MASTER_PORT", "29500"}}))
                .own_store->job,
            "MPICH's mpirun 4 ranks");
}

TEST(EnvironmentOfMpirun, OverTheHostsOfABatchJobRankZeroIsOnTheFirst) {
  const auto hydra = with(kHydra, {{"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}});
  const struct {
    Variables of_job;
    std::string name;
  } cases[] = {{{{"PBS_NODEFILE", "/nodes"}, {"PBS_JOBID", "7.head"}}, "PBS 7.head"},
               {{{"LSB_DJOB_HOSTFILE", "/nodes"}, {"LSB_JOBID", "8"}, {"LSB_JOBINDEX", "0"}}, "LSF 8[0]"},
               {{{"LSB_DJOB_HOSTFILE", "/unreadable"},
                 {"LSB_MCPU_HOSTS", "n3 2 n1 2"},
                 {"LSB_JOBID", "8"},
                 {"LSB_JOBINDEX", "7"}},
                "LSF 8[7]"}};
  for (const auto& c : cases) {
    auto variables = hydra;
    variables.insert(c.of_job.begin(), c.of_job.end());
    const Launch launch = launch_with(variables);
    ASSERT_TRUE(launch.own_store);
    EXPECT_EQ(launch.own_store->job, "MPICH's mpirun " + c.name + ", 4 ranks");
    EXPECT_EQ(launch.own_store->host, "n3");
    EXPECT_THAT(launch.own_store->nodes, ::testing::ElementsAre("n3", "n1"));
    EXPECT_FALSE(launch.own_store->is_slurm);
    EXPECT_EQ(launch.own_store->port_count, 1) << "so two mpiruns of the job can't mix";
    const auto open_mpi = with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
    auto named = open_mpi;
    named.insert(c.of_job.begin(), c.of_job.end());
    EXPECT_EQ(launch_with(named).own_store->port_count, 8) << "it names its jobs itself";
    // What a person says goes before it.
    const auto with_master = with(variables, {{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}});
    EXPECT_EQ(launch_with(with_master).own_store->host, "node0");
  }
  EXPECT_THAT(error_of(with(hydra, {{"PBS_NODEFILE", "/no such file"}})), ::testing::HasSubstr("several hosts"));
  const Launch one_host = launch_with(with(kHydra, {{"PBS_NODEFILE", "/nodes"}}));
  EXPECT_EQ(one_host.own_store->host, "");
}

TEST(EnvironmentOfSageMaker, IsARankOnEachHost) {
  const Variables variables{
      {"SM_HOSTS", R"(["algo-1", "algo-2","algo-3"])"}, {"SM_CURRENT_HOST", "algo-2"}, {"TRAINING_JOB_NAME", "bert"}};
  const Launch launch = launch_with(variables);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.size, 3);
  EXPECT_EQ(launch.local_rank, 0);
  EXPECT_EQ(launch.local_size, 1);
  ASSERT_TRUE(launch.own_store);
  EXPECT_EQ(launch.own_store->job, "SageMaker bert");
  EXPECT_EQ(launch.own_store->host, "algo-1");
  EXPECT_THAT(launch.own_store->nodes, ::testing::ElementsAre("algo-1", "algo-2", "algo-3"));
  EXPECT_FALSE(launch.own_store->is_here);
  EXPECT_TRUE(launch_with(with(variables, {{"SM_CURRENT_HOST", "algo-1"}})).own_store->is_here);
  EXPECT_EQ(launch_with(with(variables, {{"SM_HOSTS", R"(["algo-2"])"}})).size, 1);
  EXPECT_EQ(launch_with(with(variables, {{"RANK", "0"}, {"WORLD_SIZE", "1"}})).size, 1) << "a launcher of its own";
  for (const char* hosts :
       {"", "[]", "algo-2", R"(["algo-1"])", R"(["algo-2", 3])", R"(["algo-2")", R"(["al go","x"])"})
    EXPECT_THAT(error_of(with(variables, {{"SM_HOSTS", hosts}})),
                ::testing::HasSubstr("SM_CURRENT_HOST is 'algo-2', which is none of SM_HOSTS, '" + std::string(hosts)));
}

TEST(EnvironmentOfMpirun, WhatIsWrongIsNamedWithItsValue) {
  using ::testing::HasSubstr;
  EXPECT_THAT(error_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", {}}})),
              HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE is not set"));
  EXPECT_THAT(error_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "4"}})),
              HasSubstr("OMPI_COMM_WORLD_RANK is 4, but OMPI_COMM_WORLD_SIZE is 4"));
  EXPECT_THAT(error_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "x"}})), HasSubstr("OMPI_COMM_WORLD_SIZE is 'x'"));
  EXPECT_THAT(error_of(with(kHydra, {{"MPI_LOCALNRANKS", {}}})), HasSubstr("MPI_LOCALNRANKS is not set"));
  EXPECT_THAT(error_of(with(kHydra, {{"PMI_RANK", {}}})), HasSubstr("PMI_RANK is not set"));
  EXPECT_THAT(error_of(with(kHydra, {{"MPI_LOCALRANKID", "4"}})),
              HasSubstr("MPI_LOCALRANKID is 4, but MPI_LOCALNRANKS is 4"));
  EXPECT_THAT(error_of(with(kHydra, {{"MPI_LOCALNRANKS", "5"}})), HasSubstr("MPI_LOCALNRANKS is 5, but PMI_SIZE is 4"));
}

TEST(EnvironmentOfAStep, SaysWhoThisProcessIsAndWhereRank0Is) {
  const Launch launch = launch_with(with(kTask, {{"DDP_SOCKET_IFNAME", "ib0"}}));
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 3);
  EXPECT_EQ(launch.interface, "ib0");
  ASSERT_TRUE(launch.own_store);
  EXPECT_EQ(launch.own_store->job, "slurm 42.1");
  EXPECT_EQ(launch.own_store->host, "n1");
  EXPECT_FALSE(launch.own_store->is_here);
  EXPECT_EQ(launch.own_store->first_port, 20'000 + 8 * (42 + 131));
  EXPECT_EQ(launch.own_store->port_count, 8);
  EXPECT_THAT(launch.own_store->nodes, ::testing::ElementsAre("n1", "n2"));
  EXPECT_EQ(launch.own_store->rank_name, "SLURM_PROCID");
  EXPECT_EQ(launch_with(with(kTask, {{"SLURM_RESTART_COUNT", "2"}})).own_store->job, "slurm 42.1.r2");
}

TEST(EnvironmentOfAStep, OnOneNodeItsTasksMeetThere) {
  const Launch launch = launch_with(with(kTask, {{"SLURM_STEP_NODELIST", "n7"},
                                                 {"SLURM_STEP_NUM_NODES", "1"},
                                                 {"SLURM_STEP_TASKS_PER_NODE", "4"},
                                                 {"SLURM_NODEID", "0"},
                                                 {"SLURM_LOCALID", "2"}}));
  ASSERT_TRUE(launch.own_store);
  EXPECT_EQ(launch.own_store->host, "");
  EXPECT_TRUE(launch.own_store->is_here);
}

TEST(EnvironmentOfAStep, OfOneTaskIsAGroupOfOne) {
  const Launch launch = launch_with(with(kTask, {{"SLURM_STEP_NODELIST", "n7"},
                                                 {"SLURM_STEP_NUM_NODES", "1"},
                                                 {"SLURM_STEP_NUM_TASKS", "1"},
                                                 {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                                 {"SLURM_NODEID", "0"},
                                                 {"SLURM_PROCID", "0"},
                                                 {"SLURM_LOCALID", "0"}}));
  EXPECT_EQ(launch.size, 1);
  EXPECT_FALSE(launch.own_store);
}

TEST(EnvironmentOfAStep, MasterAddrAndMasterPortGoBeforeTheFirstNode) {
  const Launch launch = launch_with(with(kTask, {{"MASTER_ADDR", "n2-ib"}, {"MASTER_PORT", "29500"}}));
  ASSERT_TRUE(launch.own_store);
  EXPECT_EQ(launch.own_store->host, "n2-ib");
  EXPECT_EQ(launch.own_store->first_port, 29500);
  EXPECT_EQ(launch.own_store->port_count, 1);
  EXPECT_FALSE(launch.own_store->is_here);
  EXPECT_THAT(error_of(with(kTask, {{"MASTER_ADDR", "n2"}})),
              ::testing::HasSubstr("MASTER_ADDR is set, but MASTER_PORT is not"));
}

TEST(Environment, AStoreThatSomebodyElseServesIsUsedWhoeverStartedTheRanks) {
  const std::map<std::string, std::optional<std::string>> at{
      {"MASTER_ADDR", "login"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  for (const auto& variables : {kOpenMpi, kHydra, kTask}) {
    const Launch launch = launch_with(with(variables, at));
    ASSERT_TRUE(launch.store);
    EXPECT_EQ(launch.store->host, "login");
    EXPECT_EQ(launch.store->port, 29500);
    EXPECT_FALSE(launch.own_store);
  }
}

TEST(EnvironmentOfAStep, ARank0ThatIsNotOnTheFirstNodeIsRefused) {
  EXPECT_THAT(error_of(with(kTask, {{"SLURM_PROCID", "0"}})),
              ::testing::HasSubstr("SLURM_PROCID is 0 on n2, but the others look for rank 0 on the first node"));
}

TEST(EnvironmentOfAStep, WhatIsWrongIsRefusedAsTheStepIs) {
  EXPECT_THAT(error_of(with(kTask, {{"SLURM_STEP_NODELIST", "n[1-3]"}})), ::testing::HasSubstr("3 nodes"));
  EXPECT_THAT(error_of(with(kTask, {{"SLURM_HET_SIZE", "2"}})), ::testing::HasSubstr("heterogeneous"));
}

TEST(Environment, TheFirstLauncherOfTheOrderCounts) {
  const auto all = [](std::vector<Variables> sets) {
    Variables out;
    for (const auto& each : sets) out.insert(each.begin(), each.end());
    return out;
  };
  EXPECT_EQ(launch_with(all({kTwoRanks, kOpenMpi, kHydra, kTask})).size, 2);
  EXPECT_TRUE(launch_with(all({kTwoRanks, kOpenMpi, kHydra, kTask})).store);
  EXPECT_EQ(launch_with(all({kOpenMpi, kHydra, kTask})).own_store->rank_name, "OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(launch_with(all({kHydra, kTask})).own_store->rank_name, "PMI_RANK");
  // srun sets two of them for programs that use MPI.
  EXPECT_EQ(launch_with(all({Variables{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}, kTask})).own_store->rank_name,
            "SLURM_PROCID");
  // Whoever has its own does not hear of what is wrong with the rest.
  EXPECT_EQ(launch_with(all({kTwoRanks, Variables{{"SLURM_STEP_ID", "0"}, {"PMI_SIZE", "x"}}})).size, 2);
  EXPECT_EQ(launch_with(all({kHydra, Variables{{"SLURM_STEP_ID", "0"}}})).size, 4);
}

TEST(Environment, OfDdprunsWorkerIsPassedOverWhereThatCalledMpirun) {
  for (const auto& of_mpirun : {kOpenMpi, kHydra}) {
    auto inner = with(of_mpirun,
                      {{"DDPRUN_ROUND_ID", "1763723112-9f3a17c2b4d8e6f0-3"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
    inner.insert(kTwoRanks.begin(), kTwoRanks.end());
    const Launch launch = launch_with(inner);
    EXPECT_EQ(launch.size, 4);
    EXPECT_TRUE(launch.own_store);
    EXPECT_FALSE(launch.round);
    EXPECT_EQ(launch_with(with(inner, {{"DDPRUN_ROUND_ID", {}}})).size, 2) << "torchrun's worker within an mpirun";
  }
  // srun's, not mpirun's.
  EXPECT_EQ(
      launch_with(
          two_ranks_but({{"DDPRUN_ROUND_ID", "1763723112-9f3a17c2b4d8e6f0-3"}, {"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}))
          .size,
      2);
}

TEST(Environment, AGroupOfOneOfMpirunInAStepOfMoreTasksThanNodesIsRefused) {
  auto task = kTask;
  const auto alone = with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"},
                                     {"OMPI_COMM_WORLD_SIZE", "1"},
                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  task.insert(alone.begin(), alone.end());
  const auto error = error_of(task);
  EXPECT_THAT(error, ::testing::HasSubstr("OMPI_COMM_WORLD_SIZE is 1, but this is a task of 4 in step 42.1"));
  EXPECT_THAT(error, ::testing::HasSubstr("SLURM_STEP_NUM_TASKS"));
  EXPECT_THAT(error, ::testing::HasSubstr("\ntry:   "));
  // Open MPI's daemons, one on each node, and an mpirun that a task or a batch shell calls.
  EXPECT_EQ(launch_with(with(task, {{"SLURM_STEP_NUM_TASKS", "2"},
                                    {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                    {"SLURM_PROCID", "1"},
                                    {"SLURM_LOCALID", "0"}}))
                .size,
            1);
  auto several = kTask;
  several.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(launch_with(several).own_store->rank_name, "OMPI_COMM_WORLD_RANK");
  auto broken = with(alone, {{"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(launch_with(broken).size, 1);
}

TEST(EnvironmentOfMpirun, OfHydraWithMasterAddrItsProxyIsNotAskedFor) {
  const auto variables = with(kHydra, {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}});
  const auto lookup = [&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional<std::string>(at->second);
  };
  const auto launch = launch_from(
      lookup, []() -> std::string { throw InvalidArgument("there is none"); }, [](const std::string&) { return ""; });
  EXPECT_EQ(launch.own_store->job, "MPICH's mpirun 4 ranks");
}

TEST(Environment, OfABatchShellMeansNothing) {
  EXPECT_EQ(launch_with(kOfABatchShell).size, 1);
  EXPECT_FALSE(launch_with(kOfABatchShell).own_store);
  auto within = kOpenMpi;
  within.insert(kOfABatchShell.begin(), kOfABatchShell.end());
  EXPECT_EQ(launch_with(within).size, 4);
}

TEST(Environment, WhatAnotherStepsWorkerLeftIsPassedOver) {
  auto of_inner_srun = kTask;
  of_inner_srun.insert(kTwoRanks.begin(), kTwoRanks.end());
  of_inner_srun["DDPRUN_SLURM_STEP"] = "42.0";
  of_inner_srun["DDPRUN_ROUND_ID"] = "1763723112-9f3a17c2b4d8e6f0-3";
  const Launch launch = launch_with(of_inner_srun);
  EXPECT_EQ(launch.size, 4);
  EXPECT_FALSE(launch.round);
  EXPECT_TRUE(launch.own_store);

  // The worker itself, and what it starts, is the outer step's.
  auto worker = of_inner_srun;
  worker["DDPRUN_SLURM_STEP"] = "42.1";
  EXPECT_EQ(launch_with(worker).size, 2);
  EXPECT_TRUE(launch_with(worker).round);
  EXPECT_EQ(launch_with(with(kTask, {{"DDPRUN_SLURM_STEP", "42.1"}})).size, 1);
}

}  // namespace
}  // namespace ddp::core
