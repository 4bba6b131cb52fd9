// Turns a rank of RankProcesses into a task of a Slurm step that nothing of ours has launched.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace ddp::testing {

inline void forget_launcher() {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                           "TORCHELASTIC_USE_AGENT_STORE"}) {
    ::unsetenv(name);
  }
}

struct Step {
  std::string job;                // a number of its own, as tests run beside each other
  std::string nodes = "n1";       // as SLURM_STEP_NODELIST has it
  std::vector<int> node_of = {};  // by rank
};

inline void become_task(const Step& step, int rank) {
  forget_launcher();
  const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  const auto node = [&](std::size_t of) { return step.node_of[of]; };
  const auto own = static_cast<std::size_t>(rank);
  std::vector<int> tasks;  // by node
  int local_rank = 0;
  for (std::size_t i = 0; i < step.node_of.size(); ++i) {
    const auto at = static_cast<std::size_t>(node(i));
    if (at >= tasks.size()) tasks.resize(at + 1);
    if (i < own && node(i) == node(own)) ++local_rank;
    ++tasks[at];
  }
  std::string per_node;
  for (const int count : tasks) per_node += (per_node.empty() ? "" : ",") + std::to_string(count);
  set("SLURM_JOB_ID", step.job);
  set("SLURM_STEP_ID", "0");
  set("SLURM_STEP_NODELIST", step.nodes);
  set("SLURM_STEP_NUM_NODES", std::to_string(tasks.size()));
  set("SLURM_STEP_NUM_TASKS", std::to_string(step.node_of.size()));
  set("SLURM_STEP_TASKS_PER_NODE", per_node);
  set("SLURM_NODEID", std::to_string(node(own)));
  set("SLURM_PROCID", std::to_string(rank));
  set("SLURM_LOCALID", std::to_string(local_rank));
}

}  // namespace ddp::testing
