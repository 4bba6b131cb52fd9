// Brings the ranks of a host together, phase by phase: a rank arrives at a phase, then waits for all to have arrived.
//
// A wait ends by the arrival of all, by interrupt(), by the loss of a rank that has not arrived, or at its deadline, in
// this order where several hold: others leave because of what this rank gave up for, which is the better reason. It
// spins while each of those that are missing may be running on a core of its own, else gives its core away for a
// moment, and then sleeps: an arriving rank pays for a wake-up only where somebody sleeps. No wake-up is lost:
// sleep.hpp.
//
// With ranks on several hosts each knows of the others by notes, which its host's leader takes in. A rank in trouble
// there ends a wait as one of this host does, where it can have no part in the present call. Which ranks a wait that
// failed names is decided in core/failure/call_outcome.hpp.
//
// Ranks are counted among those of the host; only an Outcome has the ranks of the group.
//
// Threads: arrive() and wait() one thread at a time; the rest from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "rendezvous/io/deadline.hpp"
#include "worker_runtime/backends/cpu/arrivals/control_block.hpp"
#include "worker_runtime/core/failure/call_outcome.hpp"
#include "worker_runtime/core/failure/rank_state.hpp"

namespace ddp::cpu_backend {

constexpr std::chrono::seconds kVerdictMax{10};  // longer than a leader asks others

using Outcome = core::CallOutcome;

class Arrivals {
 public:
  // `ranks` is the control block, which outlives this object; all of the group are in it.
  Arrivals(std::span<RankControl> ranks, int rank);

  // A host's part of a group: `names[i]` is the rank in the group of rank i of this host; `notes` has all by that.
  Arrivals(std::span<RankControl> ranks, int rank, std::vector<int> names, std::span<RankNote> notes);

  // Shows what this rank calls next, before it arrives there; `address` is that of memory which others may read.
  void post(const Fingerprint& fingerprint, std::uint64_t address = 0);

  // What belongs to a call beside its post, at most kLineDataBytes: after post(), and before it arrives there.
  void put_data(const void* data, std::size_t bytes);

  // Ranks that have entered the phase which this rank is about to enter, and then gave up, while this rank was still at
  // work for it: what it read of their memory meanwhile may be anything, and no rank may take this phase for complete.
  std::optional<Outcome> gave_up_ahead() const;

  // Enters the next phase.
  void arrive();

  // Waits until every rank has entered the phase that this rank entered last.
  Outcome wait(io::Deadline& deadline);

  // The same for a phase that begins with what the leaders exchange: past the deadline the leader still gets
  // kVerdictMax to say who was missing on other hosts.
  Outcome wait_for_leader(io::Deadline& deadline);

  // Why a wait would end now, other than by its deadline.
  std::optional<Outcome> failure() const;

  // The same where rank `name` of the group is known to be of no more use.
  Outcome failure_without(int name) const;

  // Takes in what was said of a rank of the group; the first word on it counts.
  void note(int name, const core::RankState& state, Trouble trouble);
  // Who is noted as missing.
  std::vector<int> noted_missing() const;

  // What all ranks say with this rank's present phase, once that is complete and before it arrives again: whether all
  // call the same, wherever their memory is; what they call; where the memory of one is; its data.
  bool all_call_the_same() const;
  const std::vector<Fingerprint>& posted();
  std::uint64_t location(int rank) const;
  std::uint64_t address(int rank) const;
  void get_data(int rank, void* data, std::size_t bytes) const;

  // Which of two halves of this rank's memory the next phase may use: others are done with what was in it.
  int next_half() const { return static_cast<int>((phase_ + 1) % 2); }
  int present_half() const { return static_cast<int>(phase_ % 2); }

  // What this rank posted last, whether it has arrived with that or not.
  std::uint64_t own_call() const { return call_; }
  Fingerprint own_post() const { return core::decode(words_); }

  // Calls made by a rank, and the last of them: a glance for messages, of any rank at any time.
  std::uint64_t calls(int rank) const;
  Fingerprint last_call(int rank) const;

  // Says which rank of the group this rank is about to give up for, so that the others name that rank as well: they may
  // hear of this rank's end of the group before they notice the other's.
  void give_up_for(int name);

  // Who made a rank give up, as far as that one is of this host and another than this rank; else the rank itself.
  std::size_t cause_of(std::size_t rank) const;

  // Tells the others that this rank will arrive nowhere any more. The first word counts.
  void leave(Presence how);
  Presence presence(int rank) const;

  // Takes in that the process of a rank has ended.
  void lose(int rank);
  bool has_ended(int rank) const;

  // Sleeps until a rank of this host has left, or ended, or this rank is interrupted, or until `end`.
  void wait_until_gone(int rank, std::chrono::steady_clock::time_point end);

  // Ends this rank's waits, now and later.
  void interrupt();

 private:
  bool can_all_run() const { return ranks_.size() <= core_count_; }  // each on a core of its own
  bool has_arrived(std::size_t rank) const;
  bool all_have_arrived();
  std::uint32_t note_core();
  bool are_missing_elsewhere(std::uint32_t core) const;
  bool spin();
  bool yield();
  Outcome wait(io::Deadline& deadline, bool for_leader);
  std::optional<Outcome> sleep(std::size_t rank, io::Deadline& deadline, bool for_leader);
  bool is_any_in_trouble() const;
  core::RanksInPhase look_at_ranks(std::uint64_t phase) const;
  std::vector<core::LocalRank> look_at_ranks_here(std::uint64_t phase) const;
  std::vector<core::NotedRank> look_at_notes() const;
  std::vector<int> missing() const;
  void wake(RankControl& rank);
  void wake_all();
  PhaseLine& next_line() { return own().line(phase_ + 1); }
  const PhaseLine& present_line(std::size_t rank) const { return ranks_[rank].line(phase_); }
  RankControl& own() { return ranks_[static_cast<std::size_t>(rank_)]; }

  std::span<RankControl> ranks_;
  int rank_;
  std::vector<int> names_;
  std::span<RankNote> notes_;  // none with one host
  std::mutex note_mutex_;
  std::size_t core_count_;   // that this process may use
  std::uint64_t phase_ = 0;  // that this rank entered last
  std::uint64_t call_ = 0;   // that this rank posted last, and what it is
  FingerprintWords words_{};
  std::uint64_t address_ = 0;
  using LineData = std::array<std::uint64_t, std::tuple_size_v<decltype(PhaseLine::data)>>;
  LineData data_{};
  std::vector<Fingerprint> posted_;             // what posted() returns, kept so that no call allocates
  std::size_t arrived_up_to_ = 0;               // ranks below this one are known to have entered it
  std::unique_ptr<std::atomic<bool>[]> ended_;  // by rank: its process is dead
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> disturbed_{false};  // by lose() or interrupt()
};

}  // namespace ddp::cpu_backend
