#include "launcher/environment/worker_environment.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "launcher/command_line/option_table.hpp"
#include "launcher/command_line/visible_devices.hpp"
#include "launcher/worker_group/exit_code.hpp"

namespace ddp::launcher {
namespace {

// Set for every worker, so never inherited.
constexpr std::array<std::string_view, 17> kOwn{"LOCAL_RANK",
                                                "RANK",
                                                "GROUP_RANK",
                                                "ROLE_RANK",
                                                "ROLE_NAME",
                                                "LOCAL_WORLD_SIZE",
                                                "WORLD_SIZE",
                                                "GROUP_WORLD_SIZE",
                                                "ROLE_WORLD_SIZE",
                                                "MASTER_ADDR",
                                                "MASTER_PORT",
                                                "TORCHELASTIC_RESTART_COUNT",
                                                "TORCHELASTIC_MAX_RESTARTS",
                                                "TORCHELASTIC_RUN_ID",
                                                "TORCHELASTIC_USE_AGENT_STORE",
                                                "TORCHELASTIC_ERROR_FILE",
                                                "TORCHELASTIC_SIGNALS_TO_HANDLE"};

// What worker_variables() sets beside those.
constexpr std::array<std::string_view, 7> kBeside{"DDPRUN_ROUND_ID",     "DDPRUN_PORT_RANGE",
                                                  "DDPRUN_SLURM_STEP",   "DDPRUN_ROUND_DIRECTORY",
                                                  "OMP_NUM_THREADS",     "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                                                  "CUDA_VISIBLE_DEVICES"};

// By these a launcher further out (mpirun, srun --mpi) says to ddprun itself which of its ranks it is: to a worker, and
// to an mpirun that this starts, they are wrong.
constexpr std::array<std::string_view, 3> kOuterPrefixes{"OMPI_COMM_WORLD_", "PMI_", "MPI_LOCAL"};
constexpr std::array<std::string_view, 2> kOuter{"PMIX_RANK", "PMIX_NAMESPACE"};

constexpr std::string_view kMacro = "local_rank";

bool has_prefix(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

std::string signal_names(const std::vector<int>& signals) {
  std::string out;
  for (const int number : signals) out += (out.empty() ? "" : ",") + signal_name(number);
  return out;
}

// With --virtual-local-rank each worker sees one device: the entry of its local rank. Source: torchrun's local agent.
std::string device_of(const std::optional<std::string>& visible, int local_rank) {
  if (!visible) return std::to_string(local_rank);
  const auto entries = entries_of_visible_devices(*visible);
  if (static_cast<std::size_t>(local_rank) < entries.size()) return entries[static_cast<std::size_t>(local_rank)];
  throw UsageError("--virtual-local-rank: worker " + std::to_string(local_rank) +
                       " has no device, as CUDA_VISIBLE_DEVICES=" + *visible + " names " +
                       std::to_string(entries.size()),
                   "the environment of the workers",
                   "`--nproc-per-node=" + std::to_string(std::max<std::size_t>(1, entries.size())) + "`");
}

bool is_name_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string with_local_rank(const std::string& text, const std::string& rank) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text).substr(at);
    if (has_prefix(rest, "$$")) {
      out += "$$";
      at += 2;
    } else if (has_prefix(rest, "${local_rank}")) {
      out += rank;
      at += kMacro.size() + 3;
    } else if (has_prefix(rest, "$local_rank") &&
               (rest.size() == kMacro.size() + 1 || !is_name_character(rest[kMacro.size() + 1]))) {
      out += rank;
      at += kMacro.size() + 1;
    } else {
      out += text[at++];
    }
  }
  return out;
}

}  // namespace

std::string name_of(const std::string& variable) { return variable.substr(0, variable.find('=')); }

std::optional<std::string> value_of(std::string_view name, const std::vector<std::string>& environment) {
  for (const auto& variable : environment)
    if (has_prefix(variable, name) && variable.size() > name.size() && variable[name.size()] == '=')
      return variable.substr(name.size() + 1);
  return {};
}

bool is_withheld(const std::string& name) {
  const auto begins = [&name](std::string_view prefix) { return has_prefix(name, prefix); };
  return has_prefix(name, "PET_") || has_prefix(name, "DDPRUN_") ||
         std::any_of(kOuterPrefixes.begin(), kOuterPrefixes.end(), begins) ||
         std::find(kOuter.begin(), kOuter.end(), name) != kOuter.end() ||
         std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end();
}

bool is_workers_variable(const std::string& variable) {
  const auto is_name = [name = name_of(variable)](std::string_view each) { return each == name; };
  return variable.find('=') != std::string::npos && variable.find('\0') == std::string::npos &&
         (std::any_of(kOwn.begin(), kOwn.end(), is_name) || std::any_of(kBeside.begin(), kBeside.end(), is_name));
}

std::vector<std::string> worker_variables(const Assignment& assignment, const WorkerFacts& worker,
                                          const std::vector<std::string>& inherited) {
  const auto sum = [&worker](int first) { return std::to_string(first + worker.local_rank); };
  std::vector<std::string> out{
      "LOCAL_RANK=" + (assignment.virtual_local_rank ? "0" : std::to_string(worker.local_rank)),
      "RANK=" + sum(assignment.rank_first),
      "GROUP_RANK=" + std::to_string(assignment.group_rank),
      "ROLE_RANK=" + sum(assignment.role_rank_first),
      "ROLE_NAME=" + assignment.role,
      "LOCAL_WORLD_SIZE=" + std::to_string(assignment.workers),
      "WORLD_SIZE=" + std::to_string(assignment.world_size),
      "GROUP_WORLD_SIZE=" + std::to_string(assignment.group_world_size),
      "ROLE_WORLD_SIZE=" + std::to_string(assignment.role_world_size),
      "MASTER_ADDR=" + assignment.master_address,
      "MASTER_PORT=" + std::to_string(assignment.master_port),
      "TORCHELASTIC_RESTART_COUNT=" + std::to_string(assignment.restart_count),
      "TORCHELASTIC_MAX_RESTARTS=" + std::to_string(assignment.restarts_max),
      "TORCHELASTIC_RUN_ID=" + assignment.run_id,
      "TORCHELASTIC_USE_AGENT_STORE=True",
      "TORCHELASTIC_ERROR_FILE=" + worker.error_file,
      "TORCHELASTIC_SIGNALS_TO_HANDLE=" + signal_names(assignment.stop_signals),
      "DDPRUN_ROUND_ID=" + to_string(assignment.round)};
  if (assignment.port_last != 0)
    out.push_back("DDPRUN_PORT_RANGE=" + std::to_string(assignment.port_first) + "-" +
                  std::to_string(assignment.port_last));
  if (!assignment.slurm_step.empty()) out.push_back("DDPRUN_SLURM_STEP=" + assignment.slurm_step);
  if (!worker.round_directory.empty()) out.push_back("DDPRUN_ROUND_DIRECTORY=" + worker.round_directory);
  if (!value_of("TORCH_NCCL_ASYNC_ERROR_HANDLING", inherited)) out.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
  if (!value_of("OMP_NUM_THREADS", inherited)) {
    if (worker.core_count)
      out.push_back("OMP_NUM_THREADS=" + std::to_string(std::max(1, *worker.core_count)));
    else if (assignment.workers > 1)
      out.emplace_back("OMP_NUM_THREADS=1");
  }
  if (assignment.virtual_local_rank)
    out.push_back("CUDA_VISIBLE_DEVICES=" + device_of(value_of("CUDA_VISIBLE_DEVICES", inherited), worker.local_rank));
  return out;
}

std::vector<std::string> worker_arguments(const std::vector<std::string>& arguments, int local_rank) {
  auto out = arguments;
  for (auto& argument : out) argument = with_local_rank(argument, std::to_string(local_rank));
  return out;
}

}  // namespace ddp::launcher
