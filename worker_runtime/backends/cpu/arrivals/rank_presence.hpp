// Which ranks of a group are still there, and how that ends a wait for them.
//
// A rank of this host says in shared memory how it leaves. PeerWatch tells of a process that ended. With ranks on
// several hosts each knows of the others by notes, which its host's leader takes in. A rank in trouble there ends a
// wait as one of this host does, if it can have no part in the present call. Which ranks a wait that failed names is
// decided in core/failure/call_outcome.hpp.
//
// Ranks are counted among those of the host; only an Outcome has the ranks of the group.
//
// Threads: any.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "worker_runtime/backends/cpu/arrivals/control_block.hpp"
#include "worker_runtime/core/failure/call_outcome.hpp"
#include "worker_runtime/core/failure/rank_state.hpp"

namespace ddp::cpu_backend {

using Outcome = core::CallOutcome;

class RankPresence {
 public:
  // As Arrivals. The control block and the notes outlive this object.
  RankPresence(std::span<RankControl> ranks, int rank, std::vector<int> names, std::span<RankNote> notes);

  // Tells the others that this rank will arrive nowhere any more. The first word counts.
  void leave(Presence how);
  Presence of(int rank) const { return ranks_[static_cast<std::size_t>(rank)].presence.load(); }

  // Whether all of this host are there, without a look at what they write now. The other side is leave(): whoever read
  // what was written after it, sees here that it was called.
  bool are_all_here() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const RankControl& rank) { return rank.presence.load() == Presence::here; });
  }

  // Takes in that the process of a rank has ended.
  void lose(int rank);
  bool has_ended(int rank) const { return ended_[static_cast<std::size_t>(rank)].load(); }

  // Ends this rank's waits, now and later.
  void interrupt();

  // Whether a wait may have to end: lose() or interrupt() was called.
  bool is_disturbed() const { return disturbed_.load(std::memory_order_relaxed); }

  // Says which rank of the group this rank is about to give up for, so that the others name that rank as well: they may
  // hear of this rank's end of the group before they notice the other's.
  void give_up_for(int name);

  // Which rank made a rank give up, as far as that one is of this host and another than this rank; else the rank
  // itself.
  std::size_t cause_of(std::size_t rank) const;

  // Takes in what was said of a rank of the group; the first word on it counts.
  void note(int name, const core::RankState& state, Trouble trouble);
  // Ranks that are noted as missing.
  std::vector<int> noted_missing() const;

  // Why a wait for `phase`, in this rank's call `call`, would end now, other than by its deadline.
  std::optional<Outcome> failure(std::uint64_t phase, std::uint64_t call) const;
  // The same if rank `name` of the group is known to be of no more use.
  Outcome failure_without(std::uint64_t phase, std::uint64_t call, int name) const;
  // The same, before this rank enters `phase`, for ranks that entered it and then gave up.
  std::optional<Outcome> failure_ahead(std::uint64_t phase, std::uint64_t call) const;

  // Sleeps until a rank of this host has left, or ended, or this rank is interrupted, or until `end`.
  void wait_until_gone(int rank, std::chrono::steady_clock::time_point end);
  // The same for a rank of the group that is noted as one in trouble; `is_over`, which wake() makes it ask again, ends
  // it too.
  void wait_until_noted(int name, std::chrono::steady_clock::time_point end, const std::function<bool()>& is_over);

  // Each rank of this host that waits looks again, whichever rank it waits for.
  void wake();

  int name_of(std::size_t rank) const { return names_[rank]; }  // in the group

 private:
  bool is_any_in_trouble() const;
  core::RanksInPhase look_at_ranks(std::uint64_t phase, std::uint64_t call) const;
  std::vector<core::LocalRank> look_at_ranks_here(std::uint64_t phase) const;
  std::vector<core::NotedRank> look_at_notes() const;
  void sleep_until(RankControl& awaited, std::chrono::steady_clock::time_point end,
                   const std::function<bool()>& is_over);
  RankControl& own() { return ranks_[static_cast<std::size_t>(rank_)]; }

  std::span<RankControl> ranks_;
  int rank_;
  std::vector<int> names_;
  std::span<RankNote> notes_;  // none with one host
  std::mutex note_mutex_;
  std::unique_ptr<std::atomic<bool>[]> ended_;  // by rank: its process is dead
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> disturbed_{false};  // by lose() or interrupt()
};

// Wakes those who wait for this rank.
void wake_sleepers(RankControl& rank);

}  // namespace ddp::cpu_backend
