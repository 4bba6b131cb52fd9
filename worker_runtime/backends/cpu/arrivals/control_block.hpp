// What the ranks of a group on one host tell each other through shared memory: one entry for each rank, in the order of
// ranks, at the start of the group's shared memory. Zeroed memory is the state before the first call.
//
// Threads: every field is atomic and lock-free; processes write only where a field says so.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "worker_runtime/backends/cpu/reduce/reduce.hpp"
#include "worker_runtime/core/failure/call_outcome.hpp"
#include "worker_runtime/core/failure/fingerprint.hpp"
#include "worker_runtime/core/failure/rank_state.hpp"

namespace ddp::cpu_backend {

using core::Fingerprint;
using core::FingerprintWords;
using core::Presence;
using core::Trouble;

// The hardware fetches lines in pairs: what one rank writes at every phase has no neighbour that others read meanwhile.
constexpr std::size_t kLinePairBytes = 2 * kCacheLineBytes;

// What a rank says with a phase, written by it alone: the phase last of all.
struct PhaseLine {
  std::atomic<std::uint64_t> arrived;  // the phase that this belongs to; every call is one phase or several
  std::atomic<std::uint64_t> call;     // the number of the call, 0 before the first
  std::array<std::atomic<std::uint64_t>, std::tuple_size_v<FingerprintWords>> posted;  // the call
  std::atomic<std::uint64_t> address;  // of the memory that others read, as this rank's process has it; 0 for none
  std::array<std::atomic<std::uint64_t>, 2> data;  // of a call with that little
};

constexpr std::size_t kLineDataBytes = sizeof(PhaseLine::data);

struct alignas(kLinePairBytes) RankControl {
  struct alignas(kLinePairBytes) Place {
    PhaseLine line;
  };

  // Phase p stands in places[p % 2], which its rank can write again only for phase p + 2: once it has entered p + 1, as
  // have all others, who have read by then what belongs to p.
  std::array<Place, 2> places;
  PhaseLine& line(std::uint64_t phase) { return places[phase % 2].line; }
  const PhaseLine& line(std::uint64_t phase) const { return places[phase % 2].line; }

  // What is written only when somebody sleeps, or now and then.
  alignas(kLinePairBytes) std::atomic<std::uint32_t> futex;  // by any rank: for those who wait for this rank
  std::atomic<std::uint32_t> sleepers;                       // by any rank: how many are about to sleep on the futex
  std::atomic<Presence> presence;                            // by its rank
  std::atomic<std::int32_t> gave_up_for;                   // by its rank, before that: 1 + the rank that it lost, or 0
  std::array<std::atomic<std::uint32_t>, 2> memory_error;  // by its rank: errno, or 0, of both steps of allocate()
  std::array<std::array<std::atomic<std::uint64_t>, 2>, 2> memory_room;  // by its rank, too: bytes needed, available
  std::atomic<std::uint64_t> probe_address;                              // by its rank, at the start: see PeerMemory
  std::atomic<std::uint64_t> probe_word;
  std::atomic<std::uint32_t> reads_all;  // by its rank, at the start: 1 if it can read all others' memory
  std::atomic<std::uint32_t> core;       // by its rank, where ranks outnumber cores: 1 + that on which it last waited
  std::atomic<std::int64_t> deadline;    // by its rank, with several hosts: when its call ends, steady_clock's count
};

// What is known of a rank, of whatever host, that is in trouble; zeroes of the others. Written by the leader of the
// reader's host, once, `trouble` last.
struct alignas(kCacheLineBytes) RankNote {
  std::atomic<Trouble> trouble;
  std::atomic<Presence> presence;  // `here` of one that is lost: its process ended
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint64_t> calls;
  std::array<std::atomic<std::uint64_t>, std::tuple_size_v<FingerprintWords>> last_call;
};

// A few words of a rank that all ranks are to see. Plain memory, handed on by arrivals.
using GatheredWords = FingerprintWords;

static_assert(sizeof(PhaseLine) == kCacheLineBytes && sizeof(RankControl) == 3 * kLinePairBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<Presence>::is_always_lock_free);

}  // namespace ddp::cpu_backend
