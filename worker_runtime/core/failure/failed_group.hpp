// Where a group is, for messages.
#pragma once

#include <string>
#include <vector>

#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

struct FailedGroup {
  process_group::GroupMember who;
  std::vector<int> job_ranks{};  // of the whole job, by rank here
  int pid = 0;
  std::string device{};      // "cuda:0"; empty: the host
  std::string library{};     // "NCCL 2.28.9 at ..."; empty: none
  std::string log_advice{};  // how to learn more; empty: there is no log
};

}  // namespace ddp::core
