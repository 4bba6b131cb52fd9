// Decides what a failure means for this rank: which error it is, and which ranks it names. Pure.
#pragma once

#include <vector>

#include "worker_runtime/core/failure/failed_group.hpp"
#include "worker_runtime/core/failure/failure.hpp"
#include "worker_runtime/core/failure/rank_report.hpp"
#include "worker_runtime/core/failure/verdict.hpp"

namespace ddp::core {

// reports: of the ranks of which something is known; for Cause::ranks_lost of the lost ranks only. A backend whose
// ranks see each other's fingerprints before a call finds a mismatch by first_difference(). Without them it shows here,
// once the call has timed out.
Verdict judge(const FailedGroup& group, const Failure& failure, const std::vector<RankReport>& reports);

}  // namespace ddp::core
