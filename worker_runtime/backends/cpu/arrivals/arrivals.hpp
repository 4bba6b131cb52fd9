// Brings the ranks of a host together, phase by phase: a rank arrives at a phase, then waits for all to have arrived.
//
// A wait ends by the arrival of all, by interrupt(), by the loss of a rank that has not arrived, or at its deadline, in
// this order if several hold: others leave because of what this rank gave up for, which is the better reason. It spins
// while each of the missing ranks may be running on a core of its own, else it yields its core for a moment, and then
// it sleeps: an arriving rank pays for a wake-up only if somebody sleeps. No wake-up is lost: sleep.hpp.
//
// What ranks show with their phases: call_posts.hpp. Which ranks are there: rank_presence.hpp.
//
// Ranks are counted among those of the host; only an Outcome has the ranks of the group.
//
// Threads: arrive() and wait() one thread at a time; failure() and failure_without() any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/backends/cpu/arrivals/call_posts.hpp"
#include "worker_runtime/backends/cpu/arrivals/control_block.hpp"
#include "worker_runtime/backends/cpu/arrivals/rank_presence.hpp"

namespace ddp::cpu_backend {

constexpr std::chrono::seconds kVerdictMax{10};  // longer than a leader asks others

class Arrivals {
 public:
  // `ranks` is the control block, which outlives this object; all of the group are in it.
  Arrivals(std::span<RankControl> ranks, int rank);

  // A host's part of a group: `names[i]` is the rank in the group of rank i of this host; `notes` has all by that.
  Arrivals(std::span<RankControl> ranks, int rank, std::vector<int> names, std::span<RankNote> notes);

  CallPosts& posts() { return posts_; }
  const CallPosts& posts() const { return posts_; }
  RankPresence& presence() { return presence_; }
  const RankPresence& presence() const { return presence_; }

  // Ranks that have entered the phase which this rank is about to enter, and then gave up, while this rank was still at
  // work for it: what it read of their memory meanwhile may be anything, and no rank may take this phase for complete.
  std::optional<Outcome> gave_up_ahead() const;

  // Enters the next phase.
  void arrive();

  // Waits until every rank has entered the phase that this rank entered last.
  Outcome wait(base::Deadline& deadline);

  // The same for a phase that begins with what the leaders exchange: past the deadline the leader still gets
  // kVerdictMax to say which ranks were missing on other hosts.
  Outcome wait_for_leader(base::Deadline& deadline);

  // Why a wait would end now, other than by its deadline.
  std::optional<Outcome> failure() const { return presence_.failure(phase_, posts_.own_call()); }

  // The same if rank `name` of the group is known to be of no more use.
  Outcome failure_without(int name) const { return presence_.failure_without(phase_, posts_.own_call(), name); }

  // Which of two halves of this rank's memory the next phase may use: others are done with what was in it.
  int next_half() const { return static_cast<int>((phase_ + 1) % 2); }
  int present_half() const { return static_cast<int>(phase_ % 2); }

 private:
  bool can_all_run() const { return ranks_.size() <= core_count_; }  // each on a core of its own
  bool has_arrived(std::size_t rank) const;
  bool all_have_arrived();
  std::uint32_t note_core();
  bool are_missing_elsewhere(std::uint32_t core) const;
  bool spin();
  bool yield();
  Outcome wait(base::Deadline& deadline, bool for_leader);
  std::optional<Outcome> sleep(std::size_t rank, base::Deadline& deadline, bool for_leader);
  std::vector<int> missing() const;
  RankControl& own() { return ranks_[static_cast<std::size_t>(rank_)]; }

  std::span<RankControl> ranks_;
  int rank_;
  std::size_t core_count_;         // that this process may use
  std::uint64_t phase_ = 0;        // that this rank entered last
  std::size_t arrived_up_to_ = 0;  // ranks below this one are known to have entered it
  CallPosts posts_;
  RankPresence presence_;
};

}  // namespace ddp::cpu_backend
