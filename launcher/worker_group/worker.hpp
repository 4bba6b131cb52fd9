// The state of one worker of this node in the present round, as one value. Resources have their own owners: the
// worker's process and socket in launcher/agent, its streams in launcher/output.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "rendezvous/worker_link/message.hpp"

namespace ddp::launcher {

struct Worker {
  // Start and end; used by WorkerGroup.
  bool runs = false;
  bool is_started = false;  // in this round
  bool takes_seats = false;
  bool takes_stops = false;
  bool is_stopping = false;  // at the agreed step
  bool has_left = false;
  bool is_signalled = false;                          // by us: what it does then is no failure
  bool is_missed = false;                             // other ranks say that it did not come to a collective
  bool is_hung = false;                               // ended by us for missing a collective: that is one
  std::optional<worker_link::Departure> departure{};  // as it said last, in this round
  std::chrono::steady_clock::time_point departed{};   // when it did

  // What it has said of its part in the round; used by WorkerGroup.
  std::vector<int> unreached{};  // ranks of the job on hosts that gave its host no answer
  bool was_in_call = false;      // it has left a call that did not complete

  // The step at which it can stop; used by StopVote.
  bool is_asked = false;
  std::optional<std::uint64_t> stop_call{};  // its answer

  // Progress in the round; used by RoundProgress.
  bool has_stepped = false;
  std::optional<std::uint64_t> commits_before{}, checkpoint_before{};  // its first report of each in the round
};

// The worker after its end: what it has said still counts.
inline Worker ended(const Worker& worker) {
  Worker out;
  out.unreached = worker.unreached;
  out.was_in_call = worker.was_in_call;
  out.is_hung = worker.is_hung;
  out.is_asked = worker.is_asked;
  out.stop_call = worker.stop_call;
  out.has_stepped = worker.has_stepped;
  out.commits_before = worker.commits_before;
  out.checkpoint_before = worker.checkpoint_before;
  return out;
}

using Workers = std::vector<Worker>;  // by local rank

}  // namespace ddp::launcher
