#include "rendezvous/slurm/step.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ddp/error.hpp"

namespace ddp::slurm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Lookup lookup(const Variables& variables) {
  return [variables](const std::string& name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional<std::string>(at->second);
  };
}

// As srun of Slurm 22.05 sets them, for the third task of four on two nodes.
const Variables kTask{
    {"SLURM_JOB_ID", "42"},        {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "n[1-2]"},
    {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_TASKS_PER_NODE", "1,3"},
    {"SLURM_NODEID", "1"},         {"SLURM_PROCID", "2"},         {"SLURM_LOCALID", "1"},
    {"SLURM_NTASKS", "4"},         {"SLURM_CPUS_ON_NODE", "8"}};

// kTask, but for some variables; an empty optional unsets one.
Lookup task_but(const std::map<std::string, std::optional<std::string>>& changes) {
  Variables variables = kTask;
  for (const auto& [name, value] : changes) {
    variables.erase(name);
    if (value) variables[name] = *value;
  }
  return lookup(variables);
}

TEST(SlurmStep, SaysWhoThisTaskIs) {
  const auto step = step_of(task_but({{"SLURM_CPUS_PER_TASK", "2"}, {"SLURM_GPUS_ON_NODE", "4"}}));
  ASSERT_TRUE(step);
  EXPECT_EQ(*step, (Step{.job = "42",
                         .step = "0",
                         .restart_count = 0,
                         .nodes = {"n1", "n2"},
                         .node_index = 1,
                         .tasks = 4,
                         .task_rank = 2,
                         .local_tasks = 3,
                         .local_rank = 1,
                         .cpus_per_task = 2,
                         .cpus_on_node = 8,
                         .gpus_on_node = 4}));
  const auto plain = step_of(lookup(kTask));
  ASSERT_TRUE(plain);
  EXPECT_FALSE(plain->cpus_per_task);
  EXPECT_FALSE(plain->gpus_on_node);
}

TEST(SlurmStep, ReadsTasksPerNodeInSlurmsShortForm) {
  const auto local_tasks = [](const std::string& per_node, const std::string& node) {
    return step_of(task_but({{"SLURM_STEP_NODELIST", "n[1-4]"},
                             {"SLURM_STEP_NUM_NODES", "4"},
                             {"SLURM_STEP_NUM_TASKS", "7"},
                             {"SLURM_STEP_TASKS_PER_NODE", per_node},
                             {"SLURM_NODEID", node},
                             {"SLURM_LOCALID", "0"}}))
        ->local_tasks;
  };
  EXPECT_EQ(local_tasks("2(x3),1", "2"), 2);
  EXPECT_EQ(local_tasks("2(x3),1", "3"), 1);
  EXPECT_EQ(local_tasks("1,2(x3)", "0"), 1);
  for (const char* malformed : {"2(x3)", "2(x3),2", "2(x4)", "2(x3,1", "2(x3)1,1", "2(x),1", "(x3),7",
                                "2(x4294967295),1", "", "2,2,2,1,", "-1(x3),10"}) {
    SCOPED_TRACE(malformed);
    EXPECT_THROW(local_tasks(malformed, "0"), InvalidArgument);
  }
}

TEST(SlurmStep, ThereIsNoneInAShell) {
  EXPECT_FALSE(step_of(lookup({})));
  EXPECT_FALSE(step_of(task_but({{"SLURM_STEP_ID", {}}})));  // a batch shell: the rest says rank 0 of 4 to everybody
  for (const char* of_a_shell : {"4294967290", "4294967291", "4294967292", "4294967295"}) {
    EXPECT_FALSE(step_of(lookup({{"SLURM_JOB_ID", "42"}, {"SLURM_STEP_ID", of_a_shell}}))) << of_a_shell;
  }
}

TEST(SlurmStep, WhatIsWrongIsNamedWithItsValue) {
  const struct {
    const char* variable;
    std::optional<std::string> value;
    const char* told;
  } cases[] = {
      {"SLURM_STEP_ID", "", "SLURM_STEP_ID is ''"},
      {"SLURM_STEP_ID", "4294967296", "SLURM_STEP_ID is '4294967296'"},
      {"SLURM_JOB_ID", {}, "SLURM_JOB_ID is not set, though SLURM_STEP_ID is '0'"},
      {"SLURM_JOB_ID", "0", "SLURM_JOB_ID is '0'"},
      {"SLURM_JOB_ID", "../x", "SLURM_JOB_ID is '../x'"},
      {"SLURM_RESTART_COUNT", "-1", "SLURM_RESTART_COUNT is '-1'"},
      {"SLURM_STEP_NODELIST", {}, "SLURM_STEP_NODELIST is not set"},
      {"SLURM_STEP_NODELIST", "", "SLURM_STEP_NODELIST is empty"},
      {"SLURM_STEP_NODELIST", "n[1-2", "SLURM_STEP_NODELIST: no list of hosts: 'n[1-2'"},
      {"SLURM_STEP_NODELIST", "n[1-3]", "SLURM_STEP_NODELIST is 'n[1-3]', 3 nodes, but SLURM_STEP_NUM_NODES is 2"},
      {"SLURM_NODEID", {}, "SLURM_NODEID is not set"},
      {"SLURM_NODEID", "2", "SLURM_NODEID is 2, but the number of nodes in SLURM_STEP_NODELIST is 2"},
      {"SLURM_STEP_NUM_TASKS", "0", "SLURM_STEP_NUM_TASKS is '0'"},
      {"SLURM_STEP_NUM_TASKS", "5", "'1,3', which does not give 5 tasks on 2 nodes"},
      {"SLURM_PROCID", {}, "SLURM_PROCID is not set"},
      {"SLURM_PROCID", "4", "SLURM_PROCID is 4, but SLURM_STEP_NUM_TASKS is 4"},
      {"SLURM_LOCALID", "3", "SLURM_LOCALID is 3"},
      {"SLURM_LOCALID", "x", "SLURM_LOCALID is 'x'"},
      {"SLURM_STEP_TASKS_PER_NODE", {}, "SLURM_STEP_TASKS_PER_NODE is not set"},
      {"SLURM_CPUS_PER_TASK", "two", "SLURM_CPUS_PER_TASK is 'two'"},
      {"SLURM_CPUS_ON_NODE", "2(x2)", "SLURM_CPUS_ON_NODE is '2(x2)'"},
      {"SLURM_GPUS_ON_NODE", "-1", "SLURM_GPUS_ON_NODE is '-1'"},
      {"SLURM_HET_SIZE", "2", "a heterogeneous job (SLURM_HET_SIZE is 2)"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.variable) + "=" + c.value.value_or("(unset)"));
    try {
      step_of(task_but({{c.variable, c.value}}));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(c.told));
      EXPECT_THAT(error.what(), HasSubstr("\nwhere: "));
      EXPECT_THAT(error.what(), HasSubstr("\ntry:   "));
    }
  }
}

TEST(SlurmStep, TheNumberOfTasksIsTheStepsNotTheJobs) {
  EXPECT_EQ(step_of(task_but({{"SLURM_NTASKS", "16"}}))->tasks, 4);
  EXPECT_EQ(step_of(task_but({{"SLURM_STEP_NUM_TASKS", {}}}))->tasks, 4);
}

TEST(SlurmStep, ThatOfAnOuterLauncherMeansNothing) {
  const auto worker = task_but({{kStepVariable, "42.0"}});
  EXPECT_TRUE(is_inherited(worker));
  EXPECT_FALSE(step_of(worker));
  EXPECT_FALSE(is_left_by_another_step(worker));

  const auto of_another_srun = task_but({{kStepVariable, "42.0"}, {"SLURM_STEP_ID", "1"}});
  EXPECT_FALSE(is_inherited(of_another_srun));
  EXPECT_TRUE(step_of(of_another_srun));
  EXPECT_TRUE(is_left_by_another_step(of_another_srun));

  const auto shell = task_but({{kStepVariable, "41.0"}, {"SLURM_STEP_ID", {}}});
  EXPECT_FALSE(is_inherited(shell));
  EXPECT_TRUE(is_left_by_another_step(shell));
  EXPECT_FALSE(is_left_by_another_step(task_but({{kStepVariable, "42.0"}, {"SLURM_STEP_ID", {}}})));

  EXPECT_FALSE(is_inherited(lookup({{kStepVariable, "42.0"}})));
  EXPECT_FALSE(is_left_by_another_step(lookup({{kStepVariable, "42.0"}})));
  EXPECT_FALSE(is_left_by_another_step(lookup(kTask)));
}

TEST(SlurmStep, IsNamedByJobStepAndRestart) {
  auto step = *step_of(lookup(kTask));
  EXPECT_EQ(name_of(step), "42.0");
  EXPECT_EQ(run_id_of(step), "42.0");
  step = *step_of(task_but({{"SLURM_RESTART_COUNT", "1"}}));
  EXPECT_EQ(name_of(step), "42.0");
  EXPECT_EQ(run_id_of(step), "42.0.r1");
}

TEST(SlurmStep, ItsPortsAreOutOfTheWay) {
  const auto first = [](const std::string& job, const std::string& id) {
    const auto ports = ports_of({.job = job, .step = id});
    EXPECT_EQ(ports.count, 8);
    return ports.first;
  };
  EXPECT_EQ(first("42", "0"), 20'000 + 8 * 42);
  EXPECT_EQ(first("42", "1"), 20'000 + 8 * (42 + 131));
  EXPECT_EQ(first("1500", "0"), 20'000);
  std::set<int> all;
  for (int job = 1; job <= 3000; ++job) {
    const int port = first(std::to_string(job), "0");
    EXPECT_GE(port, 20'000);
    EXPECT_LE(port + 7, 31'999);
    all.insert(port);
  }
  EXPECT_EQ(all.size(), 1500u);
  EXPECT_GE(first("4294967295", "4294967279"), 20'000);
}

}  // namespace
}  // namespace ddp::slurm
