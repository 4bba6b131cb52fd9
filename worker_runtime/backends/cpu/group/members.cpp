#include "worker_runtime/backends/cpu/group/members.hpp"

#include <unistd.h>

#include <cstddef>
#include <numeric>

namespace ddp::cpu_backend {

namespace {

std::vector<int> pids_of(const core::Meeting& meeting, int host) {
  std::vector<int> pids(static_cast<std::size_t>(meeting.layout.size()));
  for (std::size_t index = 0; index < meeting.peers.size(); ++index) {
    pids[static_cast<std::size_t>(meeting.layout.ranks_of(host)[index])] = meeting.peers[index].pid;
  }
  return pids;
}

std::vector<int> job_ranks_of(const process_group::GroupMember& who, const core::Meeting& meeting) {
  if (!meeting.job_ranks.empty()) return meeting.job_ranks;
  std::vector<int> ranks(static_cast<std::size_t>(who.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Members::Members(const process_group::GroupMember& member, const core::Meeting& meeting)
    : who(member),
      layout(meeting.layout),
      own_host(layout.host_of(who.rank)),
      index(layout.index_of(who.rank)),
      pids(pids_of(meeting, own_host)),
      job_ranks(job_ranks_of(who, meeting)),
      network(meeting.network) {}

std::vector<int> Members::pids_here() const {
  std::vector<int> pids_by_index;
  for (const int rank : here()) pids_by_index.push_back(pids[static_cast<std::size_t>(rank)]);
  return pids_by_index;
}

core::FailedGroup Members::failed_group() const { return {.who = who, .job_ranks = job_ranks, .pid = ::getpid()}; }

}  // namespace ddp::cpu_backend
