// The variables of a Slurm step, which may hold anything. Each is taken within its range, or refused in three lines.
//
// The input replaces values of a correct step, one a line: the first byte chooses the variable, the rest is its value;
// a line of one byte unsets it. The whole input is also read as a list of hosts.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ddp/error.hpp"
#include "rendezvous/slurm/host_list.hpp"
#include "rendezvous/slurm/step.hpp"
#include "tests/fuzz/targets.hpp"

namespace {

using namespace ddp::slurm;
using ddp::fuzz::require;

constexpr std::array kNames{
    "SLURM_JOB_ID",  "SLURM_STEP_ID",        "SLURM_RESTART_COUNT", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES",
    "SLURM_NODEID",  "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",        "SLURM_PROCID",        "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_LOCALID", "SLURM_CPUS_PER_TASK",  "SLURM_CPUS_ON_NODE",  "SLURM_GPUS_ON_NODE",  "SLURM_HET_SIZE",
    kStepVariable};

void check_list(std::string_view list) {
  try {
    const auto hosts = expand_host_list(list);
    require(hosts.size() <= kHostCountMax, "hosts keep to their limit");
    for (const auto& host : hosts)
      require(!host.empty() && host.size() <= kHostNameBytesMax, "a host's name keeps to its limit");
  } catch (const ddp::InvalidArgument& error) {
    require(*error.what() != '\0', "a refusal has a reason");
  }
}

void check_step(const std::map<std::string, std::string>& variables) {
  const Lookup lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  (void)is_left_by_another_step(lookup);
  try {
    const auto step = step_of(lookup);
    if (!step) return;
    const auto count = static_cast<int>(step->nodes.size());
    require(count >= 1 && step->node_index >= 0 && step->node_index < count, "this node is one of the step's");
    require(step->task_rank >= 0 && step->task_rank < step->tasks, "this task is one of the step's");
    require(step->local_rank >= 0 && step->local_rank < step->local_tasks, "this task is one of the node's");
    require(step->local_tasks <= step->tasks, "no node has more tasks than the step");
    require(step->restart_count >= 0, "a step begins again zero times or more");
    const auto ports = ports_of(*step);
    require(ports.first >= 20'000 && ports.first + ports.count <= 32'000, "the step's ports are in their range");
    require(!run_id_of(*step).empty(), "a step has a name");
  } catch (const ddp::InvalidArgument& error) {
    const std::string what = error.what();
    require(what.find("\nwhere: ") != std::string::npos && what.find("\ntry:   ") != std::string::npos,
            "a refusal says what, where and what to try");
  }
}

}  // namespace

void ddp::fuzz::slurm_lists(std::string_view input) {
  check_list(input);
  std::map<std::string, std::string> variables{{"SLURM_JOB_ID", "42"},
                                               {"SLURM_STEP_ID", "0"},
                                               {"SLURM_STEP_NODELIST", "n[1-3]"},
                                               {"SLURM_STEP_NUM_NODES", "3"},
                                               {"SLURM_NODEID", "1"},
                                               {"SLURM_STEP_NUM_TASKS", "5"},
                                               {"SLURM_PROCID", "2"},
                                               {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                                               {"SLURM_LOCALID", "0"}};
  while (!input.empty()) {
    const auto line = input.substr(0, input.find('\n'));
    input.remove_prefix(std::min(input.size(), line.size() + 1));
    if (line.empty()) continue;
    const std::string name = kNames[static_cast<unsigned char>(line[0]) % kNames.size()];
    if (line.size() == 1) {
      variables.erase(name);
    } else {
      variables[name] = line.substr(1, line.find('\0', 1) - 1);  // no variable holds NUL
    }
  }
  check_step(variables);
}
