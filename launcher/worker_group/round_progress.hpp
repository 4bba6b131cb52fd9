// How far the workers of this node have come in the present round, by what they tell.
//
// Threads: one caller at a time (the agent's event loop).
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "rendezvous/membership/messages.hpp"
#include "rendezvous/worker_link/message.hpp"

namespace ddp::launcher {

class RoundProgress {
 public:
  explicit RoundProgress(int workers) : workers_(workers) {}

  void begin_round();

  // True once in a round: when every worker has finished a step of it.
  bool take(int local_rank, const worker_link::Progress& message);

  // What has been kept, by the worker that has come furthest; empty where nobody told of such a thing.
  const rendezvous::Progress& kept() const { return kept_; }

 private:
  int workers_;
  std::set<int> stepped_;
  std::map<int, std::uint64_t> commits_before_;  // of each worker, as it told first in this round
  rendezvous::Progress kept_;
};

}  // namespace ddp::launcher
