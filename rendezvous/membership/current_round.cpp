#include "rendezvous/membership/current_round.hpp"

#include <algorithm>
#include <utility>

namespace ddp::rendezvous {

void CurrentRound::note_end(const RoundEnded& message) {
  stopped += message.stopped;
  stopped_at_step += message.stopped_at_step;
  kept.commits = std::max(kept.commits, message.progress.commits);
  kept.checkpoint_step = std::max(kept.checkpoint_step, message.progress.checkpoint_step);
  kept.kept_at = std::max(kept.kept_at, message.progress.kept_at);
  tree_survived = tree_survived || message.tree_survived;
}

bool CurrentRound::takes_failures() const { return failures.size() < 16 * kFailuresMax; }

bool CurrentRound::note_hung(const std::vector<int>& ranks) {
  const auto known = hung_ranks.size();
  for (const int rank : ranks)
    if (rank >= 0 && hung_ranks.size() < kHungRanksMax) hung_ranks.insert(rank);
  return hung_ranks.size() > known;
}

void CurrentRound::lose(std::string what, std::chrono::milliseconds at) {
  if (!loss) loss.emplace();
  loss->what = std::move(what);
  loss->at = at;
  loss->exit_code.reset();
  loss->is_of_endpoint_host = false;
}

}  // namespace ddp::rendezvous
