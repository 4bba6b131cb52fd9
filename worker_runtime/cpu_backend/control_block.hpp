// What the ranks of a group on one host tell each other through shared memory: one entry for each rank, in the order of
// ranks, at the start of the group's shared memory. Zeroed memory is the state before the first call.
//
// Threads: every field is atomic and lock-free; processes write only where a field says so.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "worker_runtime/cpu_backend/fingerprint.hpp"
#include "worker_runtime/cpu_backend/reduce.hpp"

namespace ddp::cpu_backend {

// What a rank has to do with the group. Whatever it is, what the rank arrived at before still counts.
enum class Presence : std::uint32_t {
  here,
  left,     // it destroyed its ProcessGroup
  aborted,  // by abort()
  gave_up,  // after a failure of its own
};

struct alignas(kCacheLineBytes) RankControl {
  // A line that its rank alone writes, at every call, and the others read.
  std::atomic<std::uint64_t> arrived;  // phases this rank has entered; every call is one phase or several
  std::atomic<std::uint64_t> calls;    // that this rank has made

  // Call n stands in posted[n % 2]: a rank can be one call ahead of another that is still reading, never two.
  std::array<std::array<std::atomic<std::uint64_t>, std::tuple_size_v<FingerprintWords>>, 2> posted;

  // A line that is written only when somebody sleeps, or once.
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> bell;  // by any rank: a futex, for those who wait for this rank
  std::atomic<std::uint32_t> sleepers;                       // by any rank: how many are about to sleep on the bell
  std::atomic<Presence> presence;                            // by its rank
  std::array<std::atomic<std::uint32_t>, 2> memory_error;    // by its rank: errno, or 0, of both steps of allocate()
};

static_assert(sizeof(RankControl) == 2 * kCacheLineBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<Presence>::is_always_lock_free);

}  // namespace ddp::cpu_backend
