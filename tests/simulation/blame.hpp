// Whom membership names as the cause where a worker was killed and its end was reported only after its consequences:
// never one of the workers that missed it. A membership may name none, where the round ends for another reason.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "ddp/round.hpp"
#include "rendezvous/membership/messages.hpp"

namespace ddp::simulation {

class Blame {
 public:
  struct Killed {
    RoundId round;
    std::string host_name;
    int rank = 0, local_rank = 0;
    int changes_of_members = 0;  // before it
  };

  // Nothing else is amiss with its round, so nobody else may be blamed.
  void expect(Killed killed) {
    if (!has_ended_) killed_ = std::move(killed);
  }

  // Something else has happened that may be the cause.
  void forget() { killed_.reset(); }

  // Someone was told to stop: what ends is forgiven from now on.
  void end() {
    has_ended_ = true;
    forget();
  }

  // Throws Violation.
  void is_told(const rendezvous::ToAgent& message, int changes_of_members);

  std::size_t times_right() const { return times_right_; }

 private:
  std::optional<Killed> killed_;
  std::size_t times_right_ = 0;
  bool has_ended_ = false;
};

}  // namespace ddp::simulation
