#include "worker_runtime/cpu_backend/arrivals.hpp"

#include <sched.h>

#include <chrono>

#include "worker_runtime/cpu_backend/futex.hpp"

namespace ddp::cpu_backend {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSpinCount = 100;                        // 1 to 5 us; yielding then is nearly as fast, and kinder
constexpr std::chrono::microseconds kYieldFor{1'000};  // then it sleeps, and being woken costs 5 us
static_assert(Clock::is_steady);

std::size_t core_count() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;  // more cores than the set holds: no spinning
  return static_cast<std::size_t>(CPU_COUNT(&allowed));
}

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

Fingerprint read(const RankControl& rank, std::uint64_t call) {
  FingerprintWords words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = rank.posted[call % 2][i].load(std::memory_order_relaxed);
  return decode(words);
}

}  // namespace

Arrivals::Arrivals(std::span<RankControl> ranks, int rank)
    : ranks_(ranks),
      rank_(rank),
      may_spin_(ranks.size() <= core_count()),
      posted_(ranks.size()),
      ended_(std::make_unique<std::atomic<bool>[]>(ranks.size())) {}

void Arrivals::post(const Fingerprint& fingerprint) {
  const std::uint64_t call = own().calls.load(std::memory_order_relaxed) + 1;
  const FingerprintWords words = encode(fingerprint);
  for (std::size_t i = 0; i < words.size(); ++i) own().posted[call % 2][i].store(words[i], std::memory_order_relaxed);
  own().calls.store(call, std::memory_order_relaxed);
}

void Arrivals::arrive() {
  ++phase_;
  arrived_up_to_ = 0;
  own().arrived.store(phase_);
  if (own().sleepers.load() != 0) ring(own());
}

Outcome Arrivals::wait(io::Deadline& deadline) {
  if (spin() || yield()) return {};
  for (std::size_t rank = arrived_up_to_; rank < ranks_.size(); ++rank) {
    if (auto ended = sleep(rank, deadline)) return *ended;
  }
  return {};
}

bool Arrivals::spin() {
  for (int i = 0; may_spin_ && i < kSpinCount; ++i) {
    if (all_have_arrived()) return true;
    pause_core();
  }
  return all_have_arrived();
}

bool Arrivals::yield() {
  const auto end = Clock::now() + kYieldFor;
  while (!disturbed_.load(std::memory_order_relaxed) && Clock::now() < end) {
    ::sched_yield();
    if (all_have_arrived()) return true;
  }
  return false;  // sleep() looks into whatever disturbs
}

// Until `rank` has arrived.
std::optional<Outcome> Arrivals::sleep(std::size_t rank, io::Deadline& deadline) {
  RankControl& awaited = ranks_[rank];
  awaited.sleepers.fetch_add(1);
  std::optional<Outcome> ended;
  for (;;) {
    const std::uint32_t heard = awaited.bell.load();  // before looking: what changes from here on rings it
    if (has_arrived(rank)) break;
    if ((ended = failure())) break;
    if (deadline.passed(Clock::now())) {
      if (auto late = missing(); !late.empty()) ended = Outcome{Outcome::Kind::timed_out, std::move(late)};
      break;
    }
    futex_wait(awaited.bell, heard, deadline.end());
  }
  awaited.sleepers.fetch_sub(1);
  return ended;
}

std::optional<Outcome> Arrivals::failure() const {
  Outcome lost{Outcome::Kind::lost, {}};
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const bool gone = ended_[rank].load() || ranks_[rank].presence.load() != Presence::here;
    if (gone && !has_arrived(rank)) lost.ranks.push_back(static_cast<int>(rank));  // in this order
  }
  if (interrupted_.load()) return Outcome{Outcome::Kind::interrupted, {}};
  if (lost.ranks.empty()) return std::nullopt;
  return lost;
}

std::vector<int> Arrivals::missing() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!has_arrived(rank)) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

bool Arrivals::has_arrived(std::size_t rank) const { return ranks_[rank].arrived.load() >= phase_; }

bool Arrivals::all_have_arrived() {
  while (arrived_up_to_ < ranks_.size() && has_arrived(arrived_up_to_)) ++arrived_up_to_;
  return arrived_up_to_ == ranks_.size();
}

const std::vector<Fingerprint>& Arrivals::posted() {
  const std::uint64_t call = calls(rank_);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) posted_[rank] = read(ranks_[rank], call);
  return posted_;
}

std::uint64_t Arrivals::calls(int rank) const {
  return ranks_[static_cast<std::size_t>(rank)].calls.load(std::memory_order_relaxed);
}

Fingerprint Arrivals::last_call(int rank) const { return read(ranks_[static_cast<std::size_t>(rank)], calls(rank)); }

void Arrivals::leave(Presence how) {
  Presence before = Presence::here;
  if (own().presence.compare_exchange_strong(before, how)) ring_all();
}

Presence Arrivals::presence(int rank) const { return ranks_[static_cast<std::size_t>(rank)].presence.load(); }

void Arrivals::lose(int rank) {
  ended_[static_cast<std::size_t>(rank)].store(true);
  disturbed_.store(true);
  ring_all();
}

bool Arrivals::has_ended(int rank) const { return ended_[static_cast<std::size_t>(rank)].load(); }

void Arrivals::interrupt() {
  interrupted_.store(true);
  disturbed_.store(true);
  ring_all();
}

void Arrivals::ring(RankControl& rank) {
  rank.bell.fetch_add(1);
  futex_wake_all(rank.bell);
}

// Whoever waits must look again, whichever rank it sleeps for.
void Arrivals::ring_all() {
  for (RankControl& rank : ranks_) {
    if (rank.sleepers.load() != 0) ring(rank);
  }
}

}  // namespace ddp::cpu_backend
