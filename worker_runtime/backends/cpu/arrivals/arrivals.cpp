#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "worker_runtime/backends/cpu/arrivals/core_count.hpp"
#include "worker_runtime/backends/cpu/arrivals/futex.hpp"
#include "worker_runtime/backends/cpu/arrivals/prefetch.hpp"
#include "worker_runtime/backends/cpu/arrivals/sleep.hpp"

namespace ddp::cpu_backend {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSpinCount = 100;                        // 1 to 5 us; yielding then is nearly as fast, and kinder
constexpr int kBriefSpinCount = 60;                    // between two yields: about as long as one takes
constexpr int kYieldsPerLook = 8;                      // at the clock
constexpr std::chrono::microseconds kYieldFor{1'000};  // then it sleeps, and being woken costs 5 us
static_assert(Clock::is_steady);

FingerprintWords words_of(const PhaseLine& line) {
  FingerprintWords words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = line.posted[i].load(std::memory_order_relaxed);
  return words;
}

// The line in which the last call of a rank stands, of whatever phase.
const PhaseLine& line_of_last_call(const RankControl& rank) {
  const auto key = [](const PhaseLine& line) {
    return std::pair(line.call.load(std::memory_order_acquire), line.arrived.load(std::memory_order_relaxed));
  };
  return key(rank.line(0)) < key(rank.line(1)) ? rank.line(1) : rank.line(0);
}

}  // namespace

Arrivals::Arrivals(std::span<RankControl> ranks, int rank) : Arrivals(ranks, rank, {}, {}) {}

Arrivals::Arrivals(std::span<RankControl> ranks, int rank, std::vector<int> names, std::span<RankNote> notes)
    : ranks_(ranks),
      rank_(rank),
      names_(std::move(names)),
      notes_(notes),
      core_count_(core_count()),
      posted_(ranks.size()),
      ended_(std::make_unique<std::atomic<bool>[]>(ranks.size())) {
  for (int i = static_cast<int>(names_.size()); i < static_cast<int>(ranks.size()); ++i) names_.push_back(i);
}

void Arrivals::post(const Fingerprint& fingerprint, std::uint64_t address) {
  ++call_;
  words_ = encode(fingerprint);
  address_ = address;
}

void Arrivals::put_data(const void* data, std::size_t bytes) { std::memcpy(data_.data(), data, bytes); }

void Arrivals::get_data(int rank, void* data, std::size_t bytes) const {
  const PhaseLine& line = present_line(static_cast<std::size_t>(rank));
  LineData words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = line.data[i].load(std::memory_order_relaxed);
  std::memcpy(data, words.data(), bytes);
}

// The other side is leave(): whoever read what was written after it, sees here that it was called.
std::optional<Outcome> Arrivals::gave_up_ahead() const {
  std::atomic_thread_fence(std::memory_order_acquire);
  const auto is_here = [](const RankControl& rank) { return rank.presence.load() == Presence::here; };
  if (std::all_of(ranks_.begin(), ranks_.end(), is_here)) return std::nullopt;  // without a look at what they write now
  return core::failure_ahead(look_at_ranks(phase_ + 1));
}

// Without a pause in which the others, who may be waiting, would take the line away that is half written.
void Arrivals::arrive() {
  PhaseLine& line = next_line();
  ++phase_;
  arrived_up_to_ = 0;
  // Whoever is the last to come finds the others' lines on their way when its own, which they are looking at, is
  // written.
  for (std::size_t i = 0; can_all_run() && i < ranks_.size(); ++i) prefetch_for_reading(&present_line(i));
  for (std::size_t i = 0; i < words_.size(); ++i) line.posted[i].store(words_[i], std::memory_order_relaxed);
  for (std::size_t i = 0; i < data_.size(); ++i) line.data[i].store(data_[i], std::memory_order_relaxed);
  line.address.store(address_, std::memory_order_relaxed);
  line.call.store(call_, std::memory_order_release);
  if (store_and_find_sleepers(line.arrived, phase_, own().sleepers)) wake(own());
}

Outcome Arrivals::wait(io::Deadline& deadline) { return wait(deadline, false); }

Outcome Arrivals::wait_for_leader(io::Deadline& deadline) { return wait(deadline, true); }

Outcome Arrivals::wait(io::Deadline& deadline, bool for_leader) {
  if (spin() || yield()) {
    prefetch_for_writing(&next_line());  // not before: till all have arrived, somebody may still read it
    return {};
  }
  for (std::size_t rank = arrived_up_to_; rank < ranks_.size(); ++rank) {
    if (auto ended = sleep(rank, deadline, for_leader)) return *ended;
  }
  return {};
}

bool Arrivals::spin() {
  const int count = can_all_run() ? kSpinCount : are_missing_elsewhere(note_core()) ? kBriefSpinCount : 0;
  for (int i = 0; i < count; ++i) {
    if (all_have_arrived()) return true;
    pause_core();
  }
  return all_have_arrived();
}

bool Arrivals::yield() {
  std::optional<Clock::time_point> end;
  for (int i = 1; !disturbed_.load(std::memory_order_relaxed); ++i) {
    ::sched_yield();
    if (can_all_run() ? all_have_arrived() : spin()) return true;
    if (i % kYieldsPerLook != 0) continue;
    const auto now = Clock::now();
    if (!end) end = now + kYieldFor;
    if (now >= *end) break;
  }
  return false;  // sleep() looks into whatever disturbs
}

// Until `rank` has arrived.
std::optional<Outcome> Arrivals::sleep(std::size_t rank, io::Deadline& deadline, bool for_leader) {
  RankControl& awaited = ranks_[rank];
  std::optional<Outcome> ended;
  std::optional<Clock::time_point> verdict_end;  // once the deadline has passed
  const auto look = [&]() -> std::optional<Clock::time_point> {
    if (has_arrived(rank)) return std::nullopt;
    if ((ended = failure())) return std::nullopt;
    if (!verdict_end && deadline.passed(Clock::now())) {
      verdict_end = Clock::now() + (for_leader && rank == 0 ? kVerdictMax : std::chrono::seconds(0));
    }
    if (verdict_end && Clock::now() >= *verdict_end) {
      if (auto late = missing(); !late.empty()) ended = Outcome{Outcome::Kind::timed_out, std::move(late)};
      return std::nullopt;
    }
    return verdict_end.value_or(deadline.end());
  };
  while (sleep_unless_over(awaited.futex, awaited.sleepers, look)) {
  }
  return ended;
}

std::optional<Outcome> Arrivals::failure() const {
  if (!is_any_in_trouble()) return std::nullopt;
  return core::failure_of(look_at_ranks(phase_));
}

Outcome Arrivals::failure_without(int name) const { return core::failure_without(look_at_ranks(phase_), name); }

std::size_t Arrivals::cause_of(std::size_t rank) const {
  constexpr std::uint64_t kAnyPhase = 0;  // other threads ask this too, and who has arrived does not matter
  return core::cause_of(look_at_ranks_here(kAnyPhase), static_cast<std::size_t>(rank_), rank);
}

// Without an allocation: whoever waits asks this again and again.
bool Arrivals::is_any_in_trouble() const {
  if (interrupted_.load()) return true;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ended_[rank].load() || ranks_[rank].presence.load() != Presence::here) return true;
  }
  return std::any_of(notes_.begin(), notes_.end(),
                     [](const RankNote& note) { return note.trouble.load() != Trouble::none; });
}

core::RanksInPhase Arrivals::look_at_ranks(std::uint64_t phase) const {
  core::RanksInPhase ranks{.own = static_cast<std::size_t>(rank_), .call = call_};
  ranks.here = look_at_ranks_here(phase);
  ranks.noted = look_at_notes();
  ranks.is_interrupted = interrupted_.load();  // after the rest: others leave because of what this rank gave up for
  return ranks;
}

std::vector<core::LocalRank> Arrivals::look_at_ranks_here(std::uint64_t phase) const {
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

std::vector<core::NotedRank> Arrivals::look_at_notes() const {
  std::vector<core::NotedRank> noted;
  for (const RankNote& note : notes_) {
    const Trouble trouble = note.trouble.load();  // written last
    noted.push_back({trouble, note.presence.load(), note.calls.load()});
  }
  return noted;
}

void Arrivals::note(int name, const core::RankState& state, Trouble trouble) {
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
  wake_all();
}

std::vector<int> Arrivals::noted_missing() const { return core::noted_missing(look_at_notes()); }

std::vector<int> Arrivals::missing() const {
  std::vector<int> names;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!has_arrived(rank)) names.push_back(names_[rank]);
  }
  return names;
}

bool Arrivals::has_arrived(std::size_t rank) const { return present_line(rank).arrived.load() >= phase_; }

bool Arrivals::all_have_arrived() {
  while (arrived_up_to_ < ranks_.size() && has_arrived(arrived_up_to_)) ++arrived_up_to_;
  return arrived_up_to_ == ranks_.size();
}

// The core that this rank is on; the others see it where ranks outnumber cores.
std::uint32_t Arrivals::note_core() {
  const auto core = static_cast<std::uint32_t>(::sched_getcpu()) + 1;
  if (own().core.load(std::memory_order_relaxed) != core) own().core.store(core, std::memory_order_relaxed);
  return core;
}

// Whether each that is missing may be running on a core of its own, other than this one.
bool Arrivals::are_missing_elsewhere(std::uint32_t core) const {
  std::size_t cores_left = core_count_;
  for (std::size_t rank = arrived_up_to_; rank < ranks_.size(); ++rank) {
    if (has_arrived(rank)) continue;
    if (--cores_left == 0 || ranks_[rank].core.load(std::memory_order_relaxed) == core) return false;
  }
  return true;
}

bool Arrivals::all_call_the_same() const {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!core::same_call(words_of(present_line(rank)), words_)) return false;
  }
  return true;
}

const std::vector<Fingerprint>& Arrivals::posted() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) posted_[rank] = core::decode(words_of(present_line(rank)));
  return posted_;
}

std::uint64_t Arrivals::location(int rank) const {
  return core::location_of(words_of(present_line(static_cast<std::size_t>(rank))));
}

std::uint64_t Arrivals::address(int rank) const {
  return present_line(static_cast<std::size_t>(rank)).address.load(std::memory_order_relaxed);
}

std::uint64_t Arrivals::calls(int rank) const {
  return line_of_last_call(ranks_[static_cast<std::size_t>(rank)]).call.load(std::memory_order_relaxed);
}

Fingerprint Arrivals::last_call(int rank) const {
  return core::decode(words_of(line_of_last_call(ranks_[static_cast<std::size_t>(rank)])));
}

void Arrivals::give_up_for(int name) {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) own().gave_up_for.store(static_cast<std::int32_t>(found - names_.begin()) + 1);
}

void Arrivals::leave(Presence how) {
  Presence before = Presence::here;
  const bool is_first = own().presence.compare_exchange_strong(before, how);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before anything that this rank writes, or frees, from here on
  if (is_first) wake_all();
}

Presence Arrivals::presence(int rank) const { return ranks_[static_cast<std::size_t>(rank)].presence.load(); }

void Arrivals::lose(int rank) {
  ended_[static_cast<std::size_t>(rank)].store(true);
  disturbed_.store(true);
  wake_all();
}

bool Arrivals::has_ended(int rank) const { return ended_[static_cast<std::size_t>(rank)].load(); }

void Arrivals::wait_until_gone(int rank, Clock::time_point end) {
  RankControl& awaited = ranks_[static_cast<std::size_t>(rank)];
  const auto look = [&]() -> std::optional<Clock::time_point> {
    const bool is_gone = awaited.presence.load() != Presence::here || has_ended(rank);
    if (is_gone || interrupted_.load() || Clock::now() >= end) return std::nullopt;
    return end;
  };
  while (sleep_unless_over(awaited.futex, awaited.sleepers, look)) {
  }
}

void Arrivals::interrupt() {
  interrupted_.store(true);
  disturbed_.store(true);
  wake_all();
}

void Arrivals::wake(RankControl& rank) {
  rank.futex.fetch_add(1);
  futex_wake_all(rank.futex);
}

// Whoever waits must look again, whichever rank it sleeps for.
void Arrivals::wake_all() {
  for (RankControl& rank : ranks_) {
    if (rank.sleepers.load() != 0) wake(rank);
  }
}

}  // namespace ddp::cpu_backend
