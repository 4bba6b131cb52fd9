// Whether another round follows a round that has ended, and what the job pays for it.
//
// A failure costs one restart of the budget, a change of members costs none. Rounds whose workers fail one after the
// other and keep nothing end the job even if restarts are left. A host that ends round after round is left out of the
// next ones for a while, and after rounds that fail, or lose a node, at once the next one waits.
//
// Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/membership/current_round.hpp"
#include "rendezvous/membership/limits.hpp"
#include "rendezvous/membership/reasons.hpp"

namespace ddp::rendezvous {

class Restarts {
 public:
  struct RoundEnd {
    const CurrentRound& round;
    bool has_begun = false;  // its nodes were told to start workers
    bool is_change_of_members = false;
  };

  Restarts(int restarts_max, std::chrono::milliseconds window) : budget_(restarts_max, window) {}

  // How many there have been, as far as a membership before this one has counted.
  void restate(int count, const std::optional<std::vector<SpentRestarts>>& spent, TimePoint now) {
    budget_.restate(count, spent, now);
  }
  // The limits of the job have become known with an adopted round.
  void set_limits(int restarts_max, std::chrono::milliseconds window) { budget_.set_limits(restarts_max, window); }
  int count() const { return budget_.count(); }
  std::optional<std::vector<SpentRestarts>> spent(TimePoint now) const { return budget_.spent(now); }

  // As far as is known before all nodes have ended the round. are_enough_left: nodes, for another round.
  bool may_follow(const CurrentRound& round, bool are_enough_left, TimePoint now);

  // The round has ended. Returns whether another one is due, but for a stop of the job and a crash loop.
  bool end(const RoundEnd& end, TimePoint now);
  bool is_crash_loop() const { return crash_loop_.is_one(); }

  // Another round follows that one.
  void go_on(const RoundEnd& end, TimePoint now);
  void set_cool_down(CoolDown cool_down) { cool_down_ = std::move(cool_down); }
  void let_in(const std::string& host, TimePoint now) { cool_down_.let_in(host, now); }
  std::optional<std::string> reason() const { return reasons_.text(); }  // of the next round; empty for the first
  const RestartPause& pause() const { return pause_; }                   // before the next round
  const CoolDown& cool_down() const { return cool_down_; }

 private:
  RestartBudget budget_;
  CrashLoop crash_loop_;
  RestartPause pause_;
  CoolDown cool_down_;
  RoundReasons reasons_;
};

}  // namespace ddp::rendezvous
