// The sentences of a failed call, the same for all backends: what happened, where, and what to try. Pure.
//
// "ended" is said of a rank that is known to have ended, "did not answer" of one that did not answer in time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "worker_runtime/core/failure/failed_group.hpp"
#include "worker_runtime/core/failure/failure.hpp"
#include "worker_runtime/core/failure/rank_report.hpp"

namespace ddp::core {

// `reports`, here and below: of all ranks of which something is known. How far each came is listed where calls run on a
// device.
std::string timeout_message(const FailedGroup& group, const Failure& failure, const std::vector<RankReport>& awaited,
                            const std::vector<RankReport>& reports);

// Another rank's time was up while it waited for this one.
std::string gave_up_message(const FailedGroup& group, const Failure& failure, const std::vector<RankReport>& reports);

// Ranks ended, left or gave up.
std::string lost_message(const FailedGroup& group, const Failure& failure, const std::vector<RankReport>& lost);

// NCCL or the device found an error.
std::string error_message(const FailedGroup& group, const Failure& failure, const std::vector<int>& silent,
                          const std::vector<RankReport>& reports);

// difference: of describe_difference()
std::string mismatch_message(const FailedGroup& group, const Failure& failure, const std::string& difference,
                             const std::vector<RankReport>& reports);

// A rank that could not allocate its part; the group goes on.
struct MemoryRefusal {
  int rank = 0;
  std::size_t bytes = 0;
  std::string memory{};  // "device memory"
  std::string why{};
  std::string advice{};
};
std::string no_memory_message(const FailedGroup& group, const MemoryRefusal& refusal);

}  // namespace ddp::core
