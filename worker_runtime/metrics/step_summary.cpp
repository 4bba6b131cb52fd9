#include "worker_runtime/metrics/step_summary.hpp"

#include <algorithm>
#include <vector>

namespace ddp::metrics {
namespace {

// Sums of one rank.
struct RankSums {
  double duration_ns = 0;
  std::size_t last_steps = 0;  // in which it was the last to arrive
  double behind_ns = 0;        // the others, in these
};

// Sums over steps; times also over ranks.
struct Sums {
  std::size_t steps = 0;
  double compute_ns = 0;
  double communication_ns = 0;
  double waiting_ns = 0;
  double samples = 0;
};

// Adds one step of all ranks, unless a rank did not measure it.
void add_step(std::span<const RankStep> all, std::size_t step_count, std::size_t step, Sums& sums,
              std::vector<RankSums>& ranks) {
  const std::size_t rank_count = ranks.size();
  const auto of = [&](std::size_t rank) -> const RankStep& { return all[rank * step_count + step]; };
  std::size_t last = 0;
  double compute_ns = 0;
  for (std::size_t rank = 0; rank < rank_count; ++rank) {
    if (of(rank).compute_ns == kNotMeasured) return;
    compute_ns += static_cast<double>(of(rank).compute_ns);
    if (of(rank).compute_ns > of(last).compute_ns) last = rank;
  }
  for (std::size_t rank = 0; rank < rank_count; ++rank) {
    // Clocks are read at slightly different times on each rank, so a difference may be more than finish() took.
    const std::int64_t waiting = std::min(of(last).compute_ns - of(rank).compute_ns, of(rank).finish_ns);
    sums.waiting_ns += static_cast<double>(waiting);
    sums.communication_ns += static_cast<double>(of(rank).finish_ns - waiting);
    ranks[rank].duration_ns += static_cast<double>(of(rank).compute_ns + of(rank).finish_ns);
    sums.samples += static_cast<double>(of(rank).samples);
  }
  ++sums.steps;
  sums.compute_ns += compute_ns;
  ++ranks[last].last_steps;
  if (rank_count > 1) {
    const auto own = static_cast<double>(of(last).compute_ns);
    ranks[last].behind_ns += own - (compute_ns - own) / static_cast<double>(rank_count - 1);
  }
}

std::chrono::nanoseconds nanoseconds(double count) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(count + 0.5));
}

}  // namespace

StepReport summarize(std::span<const RankStep> steps, std::size_t rank_count) {
  StepReport report;
  if (rank_count == 0) return report;
  const std::size_t step_count = steps.size() / rank_count;
  Sums sums;
  std::vector<RankSums> ranks(rank_count);
  for (std::size_t step = 0; step < step_count; ++step) add_step(steps, step_count, step, sums, ranks);
  report.steps = sums.steps;
  if (sums.steps == 0) return report;

  const double each = static_cast<double>(sums.steps) * static_cast<double>(rank_count);
  report.compute = nanoseconds(sums.compute_ns / each);
  report.communication = nanoseconds(sums.communication_ns / each);
  report.waiting = nanoseconds(sums.waiting_ns / each);
  // From release to release all ranks take equally long, but for a rank in join(), which measures nothing.
  double duration_ns = 0;
  for (const RankSums& rank : ranks) duration_ns = std::max(duration_ns, rank.duration_ns);
  if (duration_ns > 0) report.samples_per_second = 1e9 * sums.samples / duration_ns;
  if (rank_count == 1) return report;

  const auto slowest = std::max_element(ranks.begin(), ranks.end(), [](const RankSums& a, const RankSums& b) {
    return a.last_steps != b.last_steps ? a.last_steps < b.last_steps : a.behind_ns < b.behind_ns;
  });
  report.slowest_rank = static_cast<int>(slowest - ranks.begin());
  report.slowest_steps = slowest->last_steps;
  report.slowest_behind = nanoseconds(slowest->behind_ns / static_cast<double>(slowest->last_steps));
  return report;
}

}  // namespace ddp::metrics
