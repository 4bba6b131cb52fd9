// The environment and the arguments of each worker: torchrun's variables, exactly, and ours beside them
// (docs/environment.md).
//
// Pure. Source of the names and values: PyTorch, torch/distributed/elastic/agent/server/local_elastic_agent.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/round.hpp"

namespace ddp::launcher {

// One node's share of a round.
struct Assignment {
  RoundId round;
  int workers = 1;     // on this node
  int rank_first = 0;  // the global rank of local rank 0
  int world_size = 1;
  int group_rank = 0;  // of this node
  int group_world_size = 1;
  std::string role = "default";
  int role_rank_first = 0;
  int role_world_size = 1;
  int restart_count = 0;  // of the whole job
  int restarts_max = 0;
  std::string run_id;
  std::string master_address;
  std::uint16_t master_port = 0;
  std::vector<int> stop_signals;
  bool virtual_local_rank = false;
  std::uint16_t port_first = 0, port_last = 0;  // that workers which listen keep to; 0: any
  std::string slurm_step;                       // DDPRUN_SLURM_STEP: whose SLURM_* they inherit; empty: not said
};

struct WorkerFacts {
  int local_rank = 0;
  std::string error_file;         // TORCHELASTIC_ERROR_FILE; empty: nowhere
  std::optional<int> core_count;  // that this worker is bound to; empty where it is not bound
  std::string round_directory{};  // DDPRUN_ROUND_DIRECTORY: for files of libddp; "/dev/null": none; empty: not said
};

// Of "NAME=value".
std::string name_of(const std::string& variable);

// The value of the first "NAME=value" of this name.
std::optional<std::string> value_of(std::string_view name, const std::vector<std::string>& environment);

// Whether a variable of ddprun's own environment is kept from workers: what configures a launcher (PET_*, DDPRUN_*), so
// that a nested launcher does not take it for its own, and what every worker gets a value of its own for.
bool is_withheld(const std::string& name);

// Whether a worker may be started with this "NAME=value" beside what it inherits: one of those that worker_variables()
// makes, without a NUL byte. Others might change what runs in the worker, as LD_PRELOAD, PYTHONPATH or BASH_ENV do, and
// their values may be what another node has said.
bool is_workers_variable(const std::string& variable);

// "NAME=value" for every variable that differs between workers or rounds. `inherited` is the launcher's own environment
// as "NAME=value", because some variables give way to the user's, or are made from them (CUDA_VISIBLE_DEVICES). Throws
// UsageError where --virtual-local-rank asks for a device beyond CUDA_VISIBLE_DEVICES.
std::vector<std::string> worker_variables(const Assignment& assignment, const WorkerFacts& worker,
                                          const std::vector<std::string>& inherited);

// `arguments` with ${local_rank} and $local_rank replaced, as torchrun does: Python's string.Template.safe_substitute,
// but that `$$` stays as it is.
std::vector<std::string> worker_arguments(const std::vector<std::string>& arguments, int local_rank);

}  // namespace ddp::launcher
