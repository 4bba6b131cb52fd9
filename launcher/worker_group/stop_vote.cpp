#include "launcher/worker_group/stop_vote.hpp"

#include <algorithm>

namespace ddp::launcher {

// One that is no warning goes before one that is: whoever asked it waits. A worker that is asked again says the same,
// unless it has given up its wait meanwhile.
void StopVote::ask(bool is_warning) {
  if (!is_open_) {
    asked_.clear();
    calls_.clear();
  }
  is_warning_ = is_warning && (!is_open_ || is_warning_);
  is_open_ = true;
}

StopVote::Step StopVote::next(const std::vector<Voter>& running) {
  Step out;
  if (!is_open_) return out;
  if (!std::all_of(running.begin(), running.end(), [](const Voter& voter) { return voter.takes_stops; })) {
    if (is_warning_) return out;
    is_open_ = false;
    out.answer.emplace();
    return out;
  }
  if (is_warning_) {
    is_open_ = false;
    out.answer.emplace(Answer{0});
    return out;
  }
  for (const auto& voter : running)
    if (asked_.insert(voter.local_rank).second) out.ask.push_back(voter.local_rank);
  if (!std::all_of(running.begin(), running.end(),
                   [&](const Voter& voter) { return calls_.count(voter.local_rank) != 0; }))
    return out;
  is_open_ = false;
  std::uint64_t call = 1;  // where all have ended well before they were asked
  for (const auto& [local_rank, answer] : calls_) call = std::max(call, answer);
  out.answer.emplace(Answer{call});
  return out;
}

}  // namespace ddp::launcher
