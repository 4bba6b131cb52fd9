// How a rank sleeps until another rank changes something, without a lost wake-up.
//
//   sleeper: counts itself, reads the futex word, looks, and sleeps while the word keeps that value.
//   waker:   changes what the sleeper looks at, then reads the count. If the count is not 0, it changes the word and
//            calls futex_wake_all().
//
// Every step is sequentially consistent. So either the waker sees the sleeper's count, or the sleeper's look sees the
// change. If the waker sees the count after the sleeper has read the word, the word has changed and futex_wait()
// returns. tests/model checks this protocol in every order of steps.
//
// The memory and the futex are template parameters, so that a test can replace them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "worker_runtime/backends/cpu/arrivals/futex.hpp"

namespace ddp::cpu_backend {

// The sleeper. `look` returns the latest time of the next look, or nothing if there is no reason to sleep.
// Returns whether it slept. The caller then looks again: futex_wait() may return for no reason.
template <class Word, class Count, class Look, class Wait = decltype(&futex_wait)>
bool sleep_unless_over(const Word& word, Count& sleepers, Look look, Wait wait = &futex_wait) {
  sleepers.fetch_add(1);
  const std::uint32_t seen = word.load();  // Before the look: a change after the look then differs from `seen`.
  const std::optional<std::chrono::steady_clock::time_point> until = look();
  if (until) wait(word, seen, *until);
  sleepers.fetch_sub(1);
  return until.has_value();
}

// The first half of the waker. Returns whether there may be sleepers to wake.
template <class Change, class Value, class Count>
bool store_and_find_sleepers(Change& change, Value value, const Count& sleepers) {
  // A weaker store could become visible after the load: the waker misses the sleeper, and the sleeper misses the
  // change.
  change.store(value, std::memory_order_seq_cst);
  return sleepers.load(std::memory_order_seq_cst) != 0;
}

}  // namespace ddp::cpu_backend
