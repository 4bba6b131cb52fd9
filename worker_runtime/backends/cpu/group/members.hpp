// Who the ranks of a group are, and where they run, as one rank knows it.
#pragma once

#include <vector>

#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/core/failure/failed_group.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::cpu_backend {

struct Members {
  Members(const process_group::GroupMember& member, const core::Meeting& meeting);

  bool has_hosts() const { return layout.host_count() > 1; }  // several
  const std::vector<int>& here() const { return layout.ranks_of(own_host); }
  bool is_here(int rank) const { return layout.host_of(rank) == own_host; }
  std::vector<int> pids_here() const;

  core::FailedGroup failed_group() const;  // for messages

  process_group::GroupMember who;
  core::HostLayout layout;
  int own_host;
  int index;                   // among the ranks of this host
  std::vector<int> pids;       // by rank; 0: not known. Those of other hosts are known once the group has begun
  std::vector<int> job_ranks;  // of the whole job, by rank
  core::NetworkOptions network;
};

}  // namespace ddp::cpu_backend
