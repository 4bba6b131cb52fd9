// Why a group is of no further use, what ranks tell each other of it, and the error that each of them throws. Pure.
//
// The rank that finds a failure first *rings*: it puts the failure where all others wait for it (failure_board.hpp).
// Then every rank says how far it came, and each makes its own error of what all have said.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/core/failure/rank_progress.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

enum class Cause : std::uint8_t {
  timed_out,   // a call did not complete in its time
  transport,   // NCCL or the like found an error, mostly that another rank is gone
  device,      // a call to the device failed
  mismatch,    // ranks called different things
  aborted,     // by the program
  left,        // the group was given back with calls under way
  round_over,  // the launcher ended the round
};

struct Failure {
  Cause cause = Cause::aborted;
  int rank = 0;              // that found it
  std::string what{};        // in words; of `aborted` and `round_over` the reason that was given
  std::uint64_t number = 0;  // of the collective that it was found in; 0 where it was none
  std::string operation{};   // "all_reduce of 100 float32 (sum)"; empty where it was none
  std::size_t bytes = 0;
  std::vector<int> peers{};            // of a send or receive: who else is in it
  std::chrono::milliseconds limit{0};  // of `timed_out`
};

std::string encode(const Failure& failure);
std::optional<Failure> decode_failure(std::string_view text, int size);

// Where a group is, for messages.
struct FailedGroup {
  process_group::Membership who;
  std::vector<int> job_ranks;  // by rank here
  int pid = 0;
  std::string device;      // "cuda:0"
  std::string library;     // "NCCL 2.28.9 at ..."
  std::string log_advice;  // how to learn more
};

struct Verdict {
  enum class Kind { timeout, rank_failure, mismatch, aborted, round_over, error };
  Kind kind = Kind::error;
  std::string message;
  std::vector<int> ranks{};
};

// progress: by rank; empty where nothing is known of any rank.
Verdict judge(const FailedGroup& group, const Failure& failure,
              const std::vector<std::optional<RankProgress>>& progress);

[[noreturn]] void throw_verdict(const Verdict& verdict);

// What later calls throw.
[[noreturn]] void throw_unusable(const Verdict& first);

}  // namespace ddp::core
