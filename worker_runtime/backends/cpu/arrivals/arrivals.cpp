#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "worker_runtime/backends/cpu/arrivals/core_count.hpp"
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

}  // namespace

Arrivals::Arrivals(std::span<RankControl> ranks, int rank) : Arrivals(ranks, rank, {}, {}) {}

Arrivals::Arrivals(std::span<RankControl> ranks, int rank, std::vector<int> names, std::span<RankNote> notes)
    : ranks_(ranks),
      rank_(rank),
      core_count_(core_count()),
      posts_(ranks),
      presence_(ranks, rank, std::move(names), notes) {}

std::optional<Outcome> Arrivals::gave_up_ahead() const {
  if (presence_.are_all_here()) return std::nullopt;
  return presence_.failure_ahead(phase_ + 1, posts_.own_call());
}

// Writes the whole line at once, or the others, which may be spinning, take it away half written.
void Arrivals::arrive() {
  PhaseLine& line = own().line(++phase_);
  arrived_up_to_ = 0;
  // The last rank to come asks for the lines of the others before it writes its own, which they are looking at.
  for (std::size_t i = 0; can_all_run() && i < ranks_.size(); ++i) prefetch_for_reading(&ranks_[i].line(phase_));
  posts_.store(line);
  posts_.enter(phase_);
  if (store_and_find_sleepers(line.arrived, phase_, own().sleepers)) wake_sleepers(own());
}

Outcome Arrivals::wait(base::Deadline& deadline) { return wait(deadline, false); }

Outcome Arrivals::wait_for_leader(base::Deadline& deadline) { return wait(deadline, true); }

Outcome Arrivals::wait(base::Deadline& deadline, bool for_leader) {
  if (spin() || yield()) {
    prefetch_for_writing(&own().line(phase_ + 1));  // not before: till all have arrived, somebody may still read it
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
  for (int i = 1; !presence_.is_disturbed(); ++i) {
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
std::optional<Outcome> Arrivals::sleep(std::size_t rank, base::Deadline& deadline, bool for_leader) {
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

std::vector<int> Arrivals::missing() const {
  std::vector<int> names;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!has_arrived(rank)) names.push_back(presence_.name_of(rank));
  }
  return names;
}

bool Arrivals::has_arrived(std::size_t rank) const { return ranks_[rank].line(phase_).arrived.load() >= phase_; }

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

}  // namespace ddp::cpu_backend
