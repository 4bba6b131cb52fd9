// What is known of each rank of a group: for messages, and for the leaders of other hosts.
//
// Of a rank of this host the shared memory tells. Of a rank of another host only what its leader has told is known.
//
// Threads: any.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"
#include "worker_runtime/backends/cpu/group/members.hpp"
#include "worker_runtime/backends/cpu/hosts/host_links.hpp"
#include "worker_runtime/core/failure/failure.hpp"
#include "worker_runtime/core/failure/rank_report.hpp"
#include "worker_runtime/core/failure/rank_state.hpp"

namespace ddp::cpu_backend {

class RankStates {
 public:
  // `notes` as of SharedMemory. All three outlive this object.
  RankStates(const Members& members, const Arrivals& arrivals, std::span<const RankNote> notes)
      : members_(members), arrivals_(arrivals), notes_(notes) {}

  core::RankState state_of(int rank) const;

  // Whether a leader has told that the rank ended, left or gave up.
  bool is_noted_lost(int rank) const;

  // How such a rank ended; nullopt if no leader has told.
  std::optional<Presence> end_of(int rank) const;

  // Whether the rank is on another host that has gone silent, or whose leader has not answered the one here.
  bool is_cut_off(int rank) const;

  // All of these.
  std::vector<int> cut_off() const;

  // Whether each of them has; false for none.
  bool all_have(Presence presence, const std::vector<int>& ranks) const;

  // For a leader to tell others.
  RankNews news_of(int rank, Trouble trouble) const;

  // A failure that this rank has found in its present call.
  core::Failure failure_in_present_call(core::Cause cause) const;

  // The same, of ranks that have not come to the present call, or not to its end.
  std::vector<core::RankReport> reports_of(std::span<const int> ranks) const;

 private:
  const Members& members_;
  const Arrivals& arrivals_;
  std::span<const RankNote> notes_;
};

}  // namespace ddp::cpu_backend
