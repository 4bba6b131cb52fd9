// What a round may have ended with, for the tests of what follows from that.
#pragma once

#include <chrono>
#include <utility>

#include "rendezvous/membership/round_end.hpp"

namespace ddp::rendezvous {

using namespace std::chrono_literals;

inline FailureReport failed_at(std::chrono::milliseconds job_time, Ending ending = {Ending::Kind::exited, 3, false}) {
  FailureReport out;
  out.host = "a";
  out.seen_address = "10.0.0.1";
  out.ending = ending;
  out.job_time = job_time;
  return out;
}

inline CurrentRound with_loss(CurrentRound round, std::chrono::milliseconds at) {
  round.loss = {"node 1 (host b) was lost: gone", at, place_of("b", "10.0.0.2")};
  return round;
}

}  // namespace ddp::rendezvous
