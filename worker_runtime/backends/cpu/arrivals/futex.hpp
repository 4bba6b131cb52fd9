// Sleeping on a word of memory that processes share. Source: futex(2).
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace ddp::cpu_backend {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

// Returns when woken, when `word` is not `expected` (at once), at `until`, or for no reason: the caller looks again.
inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                       std::chrono::steady_clock::time_point until) {
  using std::chrono::nanoseconds;
  const auto since_boot = std::max(std::chrono::duration_cast<nanoseconds>(until.time_since_epoch()), nanoseconds{0});
  timespec end{};  // absolute, on CLOCK_MONOTONIC, which is steady_clock's
  end.tv_sec = static_cast<std::time_t>(since_boot.count() / 1'000'000'000);
  end.tv_nsec = static_cast<long>(since_boot.count() % 1'000'000'000);
  ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &end, nullptr, FUTEX_BITSET_MATCH_ANY);
}

inline void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ddp::cpu_backend
