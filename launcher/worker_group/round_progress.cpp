#include "launcher/worker_group/round_progress.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace ddp::launcher {

bool RoundProgress::note(const worker_link::LinkProgress& message, int local_rank, Workers& workers,
                         std::chrono::milliseconds now) {
  auto& worker = workers.at(static_cast<std::size_t>(local_rank));
  if (message.commits) {
    if (!worker.commits_before) worker.commits_before = message.commits;
    const auto before = std::min(*worker.commits_before, *message.commits);
    const auto commits = *message.commits - before;
    if (commits > kept_.commits.value_or(0)) kept_.kept_at = now;
    kept_.commits = std::max<std::optional<std::uint64_t>>(kept_.commits, commits);
  }
  if (message.checkpoint_step) {
    if (!worker.checkpoint_before) worker.checkpoint_before = message.checkpoint_step;
    const auto known = std::max(worker.checkpoint_before, kept_.checkpoint_step);
    if (message.checkpoint_step > known) kept_.kept_at = now;
    kept_.checkpoint_step = std::max(kept_.checkpoint_step, message.checkpoint_step);
  }
  return message.has_stepped && !std::exchange(worker.has_stepped, true) &&
         std::all_of(workers.begin(), workers.end(), [](const Worker& each) { return each.has_stepped; });
}

}  // namespace ddp::launcher
