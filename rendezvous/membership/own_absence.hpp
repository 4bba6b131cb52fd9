// Notices that this process itself did not run for a while, because it was stopped or starved.
//
// Its nodes may have taken it for lost meanwhile, and have gone on elsewhere. So the end of a connection does not prove
// the end of a node for a while afterwards. On a machine that is suspended the clock stands still, and nothing is
// noticed.
//
// Pure.
#pragma once

#include <chrono>
#include <optional>

#include "rendezvous/membership/limits.hpp"

namespace ddp::rendezvous {

class OwnAbsence {
 public:
  // doubt: after an absence, until what was under way must have been heard.
  OwnAbsence(std::chrono::milliseconds heartbeat_timeout, std::chrono::milliseconds doubt, TimePoint now)
      : heartbeat_timeout_(heartbeat_timeout), doubt_(doubt), ran_at_(now) {}

  // The process runs now. is_watched: it was to call this at next_look(), so a pause is an absence. Heartbeats are sent
  // twice within each timeout, so a pause of half of it may look like the end.
  void runs(bool is_watched, TimePoint now) {
    if (is_watched && now - ran_at_ > heartbeat_timeout_ / 2) {
      doubt_ends_ = now + doubt_;
      hears_until_ = now + kHears;
    }
    ran_at_ = now;
  }
  TimePoint next_look() const { return ran_at_ + heartbeat_timeout_ / 4; }

  bool is_in_doubt(TimePoint now) const { return doubt_ends_ && now < *doubt_ends_; }

  // After an absence: until when what came meanwhile is heard, such as the ends of connections. No round begins before.
  std::optional<TimePoint> hears_until(TimePoint now) const {
    return hears_until_ && now < *hears_until_ ? hears_until_ : std::nullopt;
  }
  static constexpr std::chrono::milliseconds kHears{50};

 private:
  std::chrono::milliseconds heartbeat_timeout_, doubt_;
  TimePoint ran_at_;  // the last time
  std::optional<TimePoint> doubt_ends_, hears_until_;
};

}  // namespace ddp::rendezvous
