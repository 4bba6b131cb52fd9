#include "launcher/worker_group/stop_vote.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace ddp::launcher {

// One that is no warning goes before one that is: whoever asked it waits. A worker that is asked again says the same,
// unless it has given up its wait meanwhile.
void StopVote::ask(bool is_warning, Workers& workers) {
  if (!is_open_)
    for (auto& worker : workers) {
      worker.is_asked = false;
      worker.stop_call.reset();
    }
  is_warning_ = is_warning && (!is_open_ || is_warning_);
  is_open_ = true;
}

StopVote::Next StopVote::next(const std::vector<Voter>& running, Workers& workers) {
  Next out;
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
  const auto worker_of = [&workers](const Voter& voter) -> Worker& {
    return workers.at(static_cast<std::size_t>(voter.local_rank));
  };
  for (const auto& voter : running)
    if (!std::exchange(worker_of(voter).is_asked, true)) out.ask.push_back(voter.local_rank);
  if (!std::all_of(running.begin(), running.end(),
                   [&](const Voter& voter) { return worker_of(voter).stop_call.has_value(); }))
    return out;
  is_open_ = false;
  std::uint64_t call = 1;  // where all have ended well before they were asked
  for (const auto& worker : workers) call = std::max(call, worker.stop_call.value_or(0));
  out.answer.emplace(Answer{call});
  return out;
}

}  // namespace ddp::launcher
