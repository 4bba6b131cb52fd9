// What the times of all ranks say about a window of steps. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ddp/step_report.hpp"

namespace ddp::metrics {

constexpr std::int64_t kNotMeasured = -1;

// One step of one rank, as ranks send it to each other.
struct RankStep {
  std::int64_t compute_ns = 0;  // or kNotMeasured: the step then counts on no rank
  std::int64_t finish_ns = 0;
  std::int64_t samples = 0;
};
constexpr std::size_t kRankStepWords = 3;
static_assert(sizeof(RankStep) == kRankStepWords * sizeof(std::int64_t));

// steps: those of rank 0, then those of rank 1, and so on, equally many of each. Leaves StepReport::step and
// efficiency alone. With no step that all ranks measured, steps is 0.
StepReport summarize(std::span<const RankStep> steps, std::size_t rank_count);

}  // namespace ddp::metrics
