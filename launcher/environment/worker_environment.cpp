#include "launcher/environment/worker_environment.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace ddp::launcher {
namespace {

// Set for every worker, so never inherited.
constexpr std::array<std::string_view, 17> kOwn{
    "LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE"};

bool has_prefix(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

}  // namespace

bool is_withheld(const std::string& name) {
  return has_prefix(name, "PET_") || has_prefix(name, "DDPRUN_") ||
         std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end();
}

std::string error_file(const Assignment& assignment, int local_rank) {
  return assignment.error_directory + "/round_" + std::to_string(assignment.round.number) + "_rank_" +
         std::to_string(local_rank) + "_error.json";
}

std::vector<std::string> worker_variables(const Assignment& assignment, int local_rank,
                                          const std::vector<std::string>& inherited) {
  const auto rank = std::to_string(local_rank), size = std::to_string(assignment.workers);
  std::vector<std::string> out{
      "LOCAL_RANK=" + rank,
      "RANK=" + rank,
      "GROUP_RANK=0",
      "ROLE_RANK=" + rank,
      "ROLE_NAME=default",
      "LOCAL_WORLD_SIZE=" + size,
      "WORLD_SIZE=" + size,
      "GROUP_WORLD_SIZE=1",
      "ROLE_WORLD_SIZE=" + size,
      "MASTER_ADDR=" + assignment.master_address,
      "MASTER_PORT=" + std::to_string(assignment.master_port),
      "TORCHELASTIC_RESTART_COUNT=" + std::to_string(assignment.restart_count),
      "TORCHELASTIC_MAX_RESTARTS=" + std::to_string(assignment.restarts_max),
      "TORCHELASTIC_RUN_ID=" + assignment.run_id,
      "TORCHELASTIC_USE_AGENT_STORE=True",
      "TORCHELASTIC_ERROR_FILE=" + error_file(assignment, local_rank),
      "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT",
      "DDPRUN_ROUND_ID=" + to_string(assignment.round)};
  const auto is_inherited = [&](std::string_view name) {
    return std::find(inherited.begin(), inherited.end(), name) != inherited.end();
  };
  if (!is_inherited("TORCH_NCCL_ASYNC_ERROR_HANDLING")) out.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
  if (assignment.workers > 1 && !is_inherited("OMP_NUM_THREADS")) out.emplace_back("OMP_NUM_THREADS=1");
  return out;
}

}  // namespace ddp::launcher
