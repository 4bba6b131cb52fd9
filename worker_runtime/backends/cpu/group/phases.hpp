// How the ranks of a host keep step in a call: they meet in phases (arrivals.hpp), and a phase that fails becomes the
// error of the call.
//
// Threads: those of the queue's jobs, one at a time.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"
#include "worker_runtime/backends/cpu/group/host_news.hpp"
#include "worker_runtime/backends/cpu/group/members.hpp"
#include "worker_runtime/backends/cpu/group/present_call.hpp"
#include "worker_runtime/backends/cpu/group/rank_states.hpp"
#include "worker_runtime/core/operation/group_status.hpp"

namespace ddp::cpu_backend {

class Phases {
 public:
  // All of these outlive this object.
  struct Parts {
    const Members& members;
    Arrivals& arrivals;
    const RankStates& states;
    const core::GroupStatus& status;
    PresentCall& call;
    HostNews& news;
  };

  explicit Phases(const Parts& parts) : parts_(parts) {}

  // Returns once all ranks of the host have called it as often as this rank. Throws if one never will, or if time is
  // up.
  void meet(base::Deadline& deadline);

  // The same, for a phase that begins with what the leaders exchange.
  void meet_after_leaders(base::Deadline& deadline);

  // Throws what a call throws whose wait failed, and tells the other hosts of it.
  [[noreturn]] void fail(const Outcome& outcome, const base::Deadline& deadline);

  // The memory of a rank of the host can be read no more.
  [[noreturn]] void fail_without(int index, const base::Deadline& deadline);
  [[noreturn]] void fail_by_timeout(std::span<const int> missing, const base::Deadline& deadline) const;
  [[noreturn]] void fail_by_mismatch(const std::string& what) const;

  // Throws if two ranks have called different things. `calls` by rank.
  void require_same_calls(const std::vector<Fingerprint>& calls) const;

 private:
  void arrive(const base::Deadline& deadline);

  Parts parts_;
};

// What a call throws whose waits are interrupted. If the group is still being made, it may not have failed.
[[noreturn]] void throw_unusable(const core::GroupStatus& status);

}  // namespace ddp::cpu_backend
