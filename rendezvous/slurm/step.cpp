#include "rendezvous/slurm/step.hpp"

#include <charconv>
#include <limits>
#include <numeric>
#include <string_view>

#include "ddp/error.hpp"
#include "rendezvous/slurm/host_list.hpp"

namespace ddp::slurm {

namespace {

constexpr std::uint64_t kIdMax = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kFirstSpecialStep = 0xfffffff0;  // from here on: the batch shell's, an interactive one's, ...
constexpr int kTasksMax = 1'000'000;
constexpr int kCountMax = std::numeric_limits<int>::max();

constexpr int kPortCount = 8;
constexpr std::uint64_t kFirstPort = 20'000;
constexpr std::uint64_t kPortGroups = 1'500;

[[noreturn]] void refuse(const std::string& what, const std::string& advice) {
  throw InvalidArgument(what +
                        "\nwhere: the variables of a Slurm step, in the environment of this process\ntry:   " + advice);
}

std::optional<std::uint64_t> parse_number(std::string_view text, std::uint64_t max) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (text.empty() || result.ec != std::errc{} || result.ptr != end || value > max) return std::nullopt;
  return value;
}

std::uint64_t number(const std::string& name, const std::string& text, std::uint64_t min, std::uint64_t max) {
  if (const auto value = parse_number(text, max); value && *value >= min) return *value;
  refuse(name + " is '" + text + "'",
         "a decimal number from " + std::to_string(min) + " to " + std::to_string(max) +
             ", as srun sets it; or unset SLURM_STEP_ID where srun has not started this process");
}

std::string required(const Lookup& variable, const std::string& name) {
  if (auto value = variable(name)) return *value;
  refuse(name + " is not set, though SLURM_STEP_ID is '" + variable("SLURM_STEP_ID").value_or("") + "'",
         "srun sets both for its tasks: keep all of SLURM_*, or unset SLURM_STEP_ID where srun has not started this "
         "process");
}

int required_count(const Lookup& variable, const std::string& name, int min, int max) {
  return static_cast<int>(
      number(name, required(variable, name), static_cast<std::uint64_t>(min), static_cast<std::uint64_t>(max)));
}

std::optional<int> optional_count(const Lookup& variable, const std::string& name) {
  const auto text = variable(name);
  if (!text) return std::nullopt;
  return static_cast<int>(number(name, *text, 0, kCountMax));
}

// "2(x3),1" is 2, 2, 2, 1. Empty where it is malformed or longer than `count_max`.
std::vector<int> tasks_per_node(std::string_view text, std::size_t count_max) {
  std::vector<int> out;
  while (true) {
    const auto comma = text.find(',');
    const auto item = text.substr(0, comma);
    const auto open = item.find("(x");
    const auto tasks = parse_number(item.substr(0, open), kTasksMax);
    std::optional<std::uint64_t> times = 1;
    if (open != std::string_view::npos) {
      if (item.back() != ')') return {};
      times = parse_number(item.substr(open + 2, item.size() - open - 3), count_max);
    }
    if (!tasks || !times || *times > count_max - out.size()) return {};
    out.insert(out.end(), static_cast<std::size_t>(*times), static_cast<int>(*tasks));
    if (comma == std::string_view::npos) return out;
    text.remove_prefix(comma + 1);
  }
}

std::vector<std::string> nodes_of(const Lookup& variable) {
  const auto list = required(variable, "SLURM_STEP_NODELIST");
  const std::string advice = "leave it as srun set it: `scontrol show hostnames` says what it means";
  std::vector<std::string> nodes;
  try {
    nodes = expand_host_list(list);
  } catch (const InvalidArgument& error) {
    refuse(std::string("SLURM_STEP_NODELIST: ") + error.what(), advice);
  }
  if (nodes.empty()) refuse("SLURM_STEP_NODELIST is empty", advice);
  const auto told = optional_count(variable, "SLURM_STEP_NUM_NODES");
  if (told && static_cast<std::size_t>(*told) != nodes.size()) {
    refuse("SLURM_STEP_NODELIST is '" + list + "', " + std::to_string(nodes.size()) +
               " nodes, but SLURM_STEP_NUM_NODES is " + std::to_string(*told),
           "leave both as srun set them; one of them was changed or is left over from another step");
  }
  return nodes;
}

void require_below(const std::string& name, int value, const std::string& of, int count) {
  if (value < count) return;
  refuse(name + " is " + std::to_string(value) + ", but " + of + " is " + std::to_string(count),
         "it counts from 0; leave both as srun set them, one of them was changed or is left over from another step");
}

int local_tasks_of(const Lookup& variable, const Step& step) {
  const auto text = required(variable, "SLURM_STEP_TASKS_PER_NODE");
  const auto counts = tasks_per_node(text, step.nodes.size());
  const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (counts.size() == step.nodes.size() && sum == step.tasks) return counts[static_cast<std::size_t>(step.node_index)];
  refuse("SLURM_STEP_TASKS_PER_NODE is '" + text + "', which does not give " + std::to_string(step.tasks) +
             " tasks on " + std::to_string(step.nodes.size()) + " nodes, as the other variables of the step do",
         "leave them as srun set them; one of them was changed or is left over from another step");
}

// "42.0" as the variables say it, malformed or not; empty where this is no step.
std::string name_here(const Lookup& variable) {
  const auto job = variable("SLURM_JOB_ID");
  const auto step = variable("SLURM_STEP_ID");
  return job && step ? *job + "." + *step : "";
}

}  // namespace

std::optional<Step> step_of(const Lookup& variable) {
  const auto step_text = variable("SLURM_STEP_ID");
  if (!step_text || is_inherited(variable)) return std::nullopt;
  const auto step_number = number("SLURM_STEP_ID", *step_text, 0, kIdMax);
  if (step_number >= kFirstSpecialStep) return std::nullopt;
  if (const auto components = variable("SLURM_HET_SIZE")) {
    refuse("this is a heterogeneous job (SLURM_HET_SIZE is " + *components +
               "), whose components each count their nodes and tasks from 0",
           "a job of one component, or several jobs that meet at a daemon of their own: `ddprun "
           "--rdzv-endpoint=HOST:PORT`");
  }
  Step out;
  out.job = std::to_string(number("SLURM_JOB_ID", required(variable, "SLURM_JOB_ID"), 1, kIdMax));
  out.step = std::to_string(step_number);
  out.restart_count = optional_count(variable, "SLURM_RESTART_COUNT").value_or(0);
  out.nodes = nodes_of(variable);
  out.node_index = required_count(variable, "SLURM_NODEID", 0, kTasksMax);
  require_below("SLURM_NODEID", out.node_index, "the number of nodes in SLURM_STEP_NODELIST",
                static_cast<int>(out.nodes.size()));
  const char* const tasks_name = variable("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  out.tasks = required_count(variable, tasks_name, 1, kTasksMax);
  out.task_rank = required_count(variable, "SLURM_PROCID", 0, kTasksMax);
  require_below("SLURM_PROCID", out.task_rank, tasks_name, out.tasks);
  out.local_tasks = local_tasks_of(variable, out);
  out.local_rank = required_count(variable, "SLURM_LOCALID", 0, kTasksMax);
  require_below("SLURM_LOCALID", out.local_rank, "this node's number in SLURM_STEP_TASKS_PER_NODE", out.local_tasks);
  out.cpus_per_task = optional_count(variable, "SLURM_CPUS_PER_TASK");
  out.cpus_on_node = optional_count(variable, "SLURM_CPUS_ON_NODE");
  out.gpus_on_node = optional_count(variable, "SLURM_GPUS_ON_NODE");
  return out;
}

bool is_inherited(const Lookup& variable) {
  const auto outer = variable(kStepVariable);
  return outer && !outer->empty() && *outer == name_here(variable);
}

bool is_left_by_another_step(const Lookup& variable) {
  const auto outer = variable(kStepVariable);
  if (!outer || outer->empty() || *outer == name_here(variable)) return false;
  if (variable("SLURM_STEP_ID")) return true;
  const auto job = variable("SLURM_JOB_ID");  // a batch shell's, of another job
  return job && *job != outer->substr(0, outer->find('.'));
}

std::string name_of(const Step& step) { return step.job + "." + step.step; }

std::string run_id_of(const Step& step) {
  return name_of(step) + (step.restart_count == 0 ? "" : ".r" + std::to_string(step.restart_count));
}

Ports ports_of(const Step& step) {
  return ports_of(parse_number(step.job, kIdMax).value_or(0) + 131 * parse_number(step.step, kIdMax).value_or(0));
}

Ports ports_of(std::uint64_t number) {
  return {static_cast<std::uint16_t>(kFirstPort + kPortCount * (number % kPortGroups)), kPortCount};
}

}  // namespace ddp::slurm
