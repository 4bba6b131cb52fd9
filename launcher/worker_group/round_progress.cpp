#include "launcher/worker_group/round_progress.hpp"

#include <algorithm>

namespace ddp::launcher {

void RoundProgress::begin_round() {
  stepped_.clear();
  kept_ = {};
}

bool RoundProgress::take(int local_rank, const worker_link::Progress& message) {
  kept_.commits = std::max(kept_.commits, message.commits);  // empty is less than any number
  kept_.checkpoint_step = std::max(kept_.checkpoint_step, message.checkpoint_step);
  return message.has_stepped && stepped_.insert(local_rank).second && static_cast<int>(stepped_.size()) == workers_;
}

}  // namespace ddp::launcher
