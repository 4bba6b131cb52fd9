#include "launcher/worker_group/round_progress.hpp"

#include <algorithm>

namespace ddp::launcher {

void RoundProgress::begin_round() {
  stepped_.clear();
  commits_before_.clear();
  kept_ = {};
}

bool RoundProgress::take(int local_rank, const worker_link::Progress& message) {
  if (message.commits) {
    const auto before = commits_before_.try_emplace(local_rank, *message.commits).first->second;
    kept_.commits =
        std::max<std::optional<std::uint64_t>>(kept_.commits, *message.commits - std::min(before, *message.commits));
  }
  kept_.checkpoint_step = std::max(kept_.checkpoint_step, message.checkpoint_step);
  return message.has_stepped && stepped_.insert(local_rank).second && static_cast<int>(stepped_.size()) == workers_;
}

}  // namespace ddp::launcher
