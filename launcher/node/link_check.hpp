// When a node that is left out for a broken link looks whether it reaches the other hosts again: after a second, then
// after pauses that double up to 10 s.
//
// Pure.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

class LinkCheck {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  void begin(std::vector<rendezvous::Elsewhere> to, TimePoint now) {
    to_ = std::move(to);
    pause_ = kPauseFirst;
    at_ = now + pause_;
  }
  void end() { to_.clear(), at_.reset(); }

  std::optional<TimePoint> next() const { return at_; }
  // Whom to try now; their answer is to come. Empty: nobody.
  std::vector<rendezvous::Elsewhere> due(TimePoint now) {
    if (!at_ || now < *at_) return {};
    at_.reset();
    return to_;
  }
  // Returns whether the check is over, and all work.
  bool answered(bool do_work, TimePoint now) {
    if (to_.empty() || at_) return false;
    if (do_work) return end(), true;
    pause_ = std::min(2 * pause_, kPauseMax);
    at_ = now + pause_;
    return false;
  }

 private:
  static constexpr std::chrono::seconds kPauseFirst{1}, kPauseMax{10};

  std::vector<rendezvous::Elsewhere> to_;  // empty: there is nothing to check
  std::chrono::seconds pause_{0};
  std::optional<TimePoint> at_;
};

}  // namespace ddp::launcher
