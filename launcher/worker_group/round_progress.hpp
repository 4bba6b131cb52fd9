// How far the workers of this node have come in the present round, by what they tell.
//
// Threads: one caller at a time (the agent's event loop).
#pragma once

#include <chrono>

#include "launcher/worker_group/worker.hpp"
#include "rendezvous/membership/messages.hpp"
#include "rendezvous/worker_link/message.hpp"

namespace ddp::launcher {

class RoundProgress {
 public:
  void begin_round() { kept_ = {}; }

  // Takes in a report of one worker; `now` is on the job's clock. True once per round: when every worker has finished a
  // step.
  bool note(const worker_link::LinkProgress& message, int local_rank, Workers& workers, std::chrono::milliseconds now);

  // What has been kept, by the worker that has come furthest; empty where nobody told of such a thing.
  const rendezvous::Progress& kept() const { return kept_; }

 private:
  rendezvous::Progress kept_;
};

}  // namespace ddp::launcher
