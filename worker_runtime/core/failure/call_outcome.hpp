// Decides how a wait for other ranks ends, and for which ranks, from what is known of every rank. Pure.
//
// A rank that gave up did so because of another rank. That rank is named instead, if it is known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker_runtime/core/failure/rank_state.hpp"

namespace ddp::core {

struct CallOutcome {
  enum class Kind : std::uint8_t { complete, lost, timed_out, interrupted };
  Kind kind = Kind::complete;
  std::vector<int> ranks;  // lost, or not arrived at the deadline; by their number in the group
};

// A rank of this host in one phase of a call. Fill in `is_gone` for all ranks before any other field: a rank may arrive
// and leave in good order meanwhile, and what is read of the rank that another gave up for must not be older.
struct LocalRank {
  int rank = 0;            // in the group
  bool is_gone = false;    // the process has ended, or the rank has left the group
  bool has_ended = false;  // the process has
  Presence presence = Presence::here;
  bool has_arrived = false;                  // at the phase
  std::optional<std::size_t> gave_up_for{};  // index of the rank that it lost, if it gave up for that
};

// What the leaders of hosts told of a rank of any host.
enum class Trouble : std::uint32_t {
  none,
  lost,     // it ended, or left, or gave up: it takes part in no call beyond `calls`
  missing,  // others have waited for it until a deadline
};
struct NotedRank {
  Trouble trouble = Trouble::none;
  Presence presence = Presence::here;
  std::uint64_t calls = 0;
};

struct RanksInPhase {
  std::size_t own = 0;             // index in `here`
  std::vector<LocalRank> here{};   // of this host
  std::vector<NotedRank> noted{};  // by rank of the group; empty: there is one host
  std::uint64_t call = 0;          // that this rank is in
  bool is_interrupted = false;     // this rank's waits are to end
};

// Why a wait for the phase would end now, other than by its deadline.
std::optional<CallOutcome> failure_of(const RanksInPhase& ranks);

// The same if `rank` of the group is known to be lost.
CallOutcome failure_without(const RanksInPhase& ranks, int rank);

// The same, before this rank enters the phase, for ranks that entered it and then gave up: what this rank read of their
// memory meanwhile may be anything.
std::optional<CallOutcome> failure_ahead(const RanksInPhase& ranks);

// For which rank of this host another one gave up, unless it is the rank `own`; else the rank itself. By index.
std::size_t cause_of(const std::vector<LocalRank>& here, std::size_t own, std::size_t index);

// Ranks that are noted as missing.
std::vector<int> noted_missing(const std::vector<NotedRank>& noted);

}  // namespace ddp::core
