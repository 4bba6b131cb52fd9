// What is known of one rank when a group fails, the same for all backends: messages and verdicts are made of it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker_runtime/core/failure/rank_progress.hpp"
#include "worker_runtime/core/failure/rank_state.hpp"

namespace ddp::core {

struct Failure;

// What a rank did in the call that failed.
enum class Part : std::uint8_t {
  done,     // nobody waits for it
  begun,    // the rank has called it, and others still wait for it
  missing,  // the rank has not called it
};

struct RankReport {
  int rank = 0;  // in the group
  int pid = 0;   // 0: unknown
  Presence presence = Presence::here;
  Answer answer = Answer::told;
  Part part = Part::done;

  // Only with Answer::told: the collective that the rank is in, or else its last one.
  std::uint64_t number = 0;  // from 1; 0: it has called none
  std::string call{};        // "all_reduce of 100 float32 (sum)"
  bool is_in_call = false;

  std::optional<RankProgress> progress{};  // where calls run on a device
};

// Of a rank that others wait for in collective `awaited`, or in a call that is no collective: 0.
RankReport report_of(const RankState& state, std::uint64_t awaited, Part part);

// Of all ranks, after they have told how far they came. Without `progress` (nobody could be asked): of the peers of a
// send or receive, else none.
std::vector<RankReport> reports_of(const Failure& failure, const std::vector<std::optional<RankProgress>>& progress);

std::vector<int> ranks_of(const std::vector<RankReport>& reports);

}  // namespace ddp::core
