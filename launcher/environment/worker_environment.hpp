// The environment of each worker: torchrun's variables, exactly, and ours beside them (docs/environment.md).
//
// Pure. Source of the names and values: PyTorch, torch/distributed/elastic/agent/server/local_elastic_agent.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddp/round.hpp"

namespace ddp::launcher {

// One node's share of a round.
struct Assignment {
  RoundId round;
  int workers = 1;  // on this node, which so far is all of them
  int restart_count = 0;
  int restarts_max = 0;
  std::string run_id;
  std::string master_address;
  std::uint16_t master_port = 0;
  std::string error_directory;  // where workers write error files
};

// Whether a variable of ddprun's own environment is kept from workers: what configures a launcher (PET_*, DDPRUN_*), so
// that a nested launcher does not take it for its own, and what every worker gets a value of its own for.
bool is_withheld(const std::string& name);

// "NAME=value" for every variable that differs between workers or rounds. `inherited` are names the launcher's own
// environment has, because some variables give way to the user's.
std::vector<std::string> worker_variables(const Assignment& assignment, int local_rank,
                                          const std::vector<std::string>& inherited);

// Where this worker may leave the reason of its failure (TORCHELASTIC_ERROR_FILE).
std::string error_file(const Assignment& assignment, int local_rank);

}  // namespace ddp::launcher
