#include "worker_runtime/backends/cpu/arrivals/rank_presence.hpp"

#include <utility>

#include "worker_runtime/backends/cpu/arrivals/futex.hpp"
#include "worker_runtime/backends/cpu/arrivals/sleep.hpp"

namespace ddp::cpu_backend {

RankPresence::RankPresence(std::span<RankControl> ranks, int rank, std::vector<int> names, std::span<RankNote> notes)
    : ranks_(ranks),
      rank_(rank),
      names_(std::move(names)),
      notes_(notes),
      ended_(std::make_unique<std::atomic<bool>[]>(ranks.size())) {
  for (int i = static_cast<int>(names_.size()); i < static_cast<int>(ranks.size()); ++i) names_.push_back(i);
}

void RankPresence::leave(Presence how) {
  Presence before = Presence::here;
  const bool is_first = own().presence.compare_exchange_strong(before, how);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before anything that this rank writes, or frees, from here on
  if (is_first) wake();
}

void RankPresence::lose(int rank) {
  ended_[static_cast<std::size_t>(rank)].store(true);
  disturbed_.store(true);
  wake();
}

void RankPresence::interrupt() {
  interrupted_.store(true);
  disturbed_.store(true);
  wake();
}

void RankPresence::give_up_for(int name) {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) own().gave_up_for.store(static_cast<std::int32_t>(found - names_.begin()) + 1);
}

std::size_t RankPresence::cause_of(std::size_t rank) const {
  constexpr std::uint64_t kAnyPhase = 0;  // other threads ask this too, and which ranks have arrived does not matter
  return core::cause_of(look_at_ranks_here(kAnyPhase), static_cast<std::size_t>(rank_), rank);
}

void RankPresence::note(int name, const core::RankState& state, Trouble trouble) {
  if (static_cast<std::size_t>(name) >= notes_.size()) return;
  RankNote& note = notes_[static_cast<std::size_t>(name)];
  {
    const std::lock_guard lock(note_mutex_);
    if (note.trouble.load() != Trouble::none) return;
    note.presence.store(state.presence);
    note.pid.store(state.pid);
    note.calls.store(state.calls);
    const FingerprintWords words = encode(state.last_call);
    for (std::size_t i = 0; i < words.size(); ++i) note.last_call[i].store(words[i]);
    note.trouble.store(trouble);
  }
  wake();
}

std::vector<int> RankPresence::noted_missing() const { return core::noted_missing(look_at_notes()); }

std::optional<Outcome> RankPresence::failure(std::uint64_t phase, std::uint64_t call) const {
  if (!is_any_in_trouble()) return std::nullopt;
  return core::failure_of(look_at_ranks(phase, call));
}

Outcome RankPresence::failure_without(std::uint64_t phase, std::uint64_t call, int name) const {
  return core::failure_without(look_at_ranks(phase, call), name);
}

std::optional<Outcome> RankPresence::failure_ahead(std::uint64_t phase, std::uint64_t call) const {
  return core::failure_ahead(look_at_ranks(phase, call));
}

void RankPresence::wait_until_gone(int rank, std::chrono::steady_clock::time_point end) {
  sleep_until(ranks_[static_cast<std::size_t>(rank)], end,
              [&] { return of(rank) != Presence::here || has_ended(rank) || interrupted_.load(); });
}

void RankPresence::wait_until_noted(int name, std::chrono::steady_clock::time_point end,
                                    const std::function<bool()>& is_over) {
  const RankNote& note = notes_[static_cast<std::size_t>(name)];
  sleep_until(own(), end, [&] { return note.trouble.load() != Trouble::none || is_over(); });
}

void RankPresence::sleep_until(RankControl& awaited, std::chrono::steady_clock::time_point end,
                               const std::function<bool()>& is_over) {
  using Clock = std::chrono::steady_clock;
  const auto look = [&]() -> std::optional<Clock::time_point> {
    if (is_over() || Clock::now() >= end) return std::nullopt;
    return end;
  };
  while (sleep_unless_over(awaited.futex, awaited.sleepers, look)) {
  }
}

// Without an allocation: whoever waits asks this again and again.
bool RankPresence::is_any_in_trouble() const {
  if (interrupted_.load()) return true;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ended_[rank].load() || ranks_[rank].presence.load() != Presence::here) return true;
  }
  return std::any_of(notes_.begin(), notes_.end(),
                     [](const RankNote& note) { return note.trouble.load() != Trouble::none; });
}

core::RanksInPhase RankPresence::look_at_ranks(std::uint64_t phase, std::uint64_t call) const {
  core::RanksInPhase ranks{.own = static_cast<std::size_t>(rank_), .call = call};
  ranks.here = look_at_ranks_here(phase);
  ranks.noted = look_at_notes();
  ranks.is_interrupted = interrupted_.load();  // after the rest: others leave because of what this rank gave up for
  return ranks;
}

std::vector<core::LocalRank> RankPresence::look_at_ranks_here(std::uint64_t phase) const {
  std::vector<core::LocalRank> here(ranks_.size());
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    here[rank].rank = names_[rank];
    here[rank].has_ended = ended_[rank].load();
    here[rank].is_gone = here[rank].has_ended || ranks_[rank].presence.load() != Presence::here;
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    here[rank].presence = ranks_[rank].presence.load();
    const std::int32_t gave_up_for = ranks_[rank].gave_up_for.load();
    if (gave_up_for > 0) here[rank].gave_up_for = static_cast<std::size_t>(gave_up_for - 1);
    here[rank].has_arrived = ranks_[rank].line(phase).arrived.load() >= phase;
  }
  return here;
}

std::vector<core::NotedRank> RankPresence::look_at_notes() const {
  std::vector<core::NotedRank> noted;
  for (const RankNote& note : notes_) {
    const Trouble trouble = note.trouble.load();  // written last
    noted.push_back({trouble, note.presence.load(), note.calls.load()});
  }
  return noted;
}

void wake_sleepers(RankControl& rank) {
  rank.futex.fetch_add(1);
  futex_wake_all(rank.futex);
}

void RankPresence::wake() {
  for (RankControl& rank : ranks_) {
    if (rank.sleepers.load() != 0) wake_sleepers(rank);
  }
}

}  // namespace ddp::cpu_backend
