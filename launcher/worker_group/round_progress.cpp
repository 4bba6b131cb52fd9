#include "launcher/worker_group/round_progress.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace ddp::launcher {

bool RoundProgress::note(const worker_link::LinkProgress& message, int local_rank, Workers& workers) {
  auto& worker = workers.at(static_cast<std::size_t>(local_rank));
  if (message.commits) {
    if (!worker.commits_before) worker.commits_before = message.commits;
    const auto before = std::min(*worker.commits_before, *message.commits);
    kept_.commits = std::max<std::optional<std::uint64_t>>(kept_.commits, *message.commits - before);
  }
  kept_.checkpoint_step = std::max(kept_.checkpoint_step, message.checkpoint_step);
  return message.has_stepped && !std::exchange(worker.has_stepped, true) &&
         std::all_of(workers.begin(), workers.end(), [](const Worker& each) { return each.has_stepped; });
}

}  // namespace ddp::launcher
