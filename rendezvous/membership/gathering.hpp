// The wait for nodes between two rounds.
//
// It lasts for the join timeout at most. The first round begins once the maximum of nodes is here, or the minimum and a
// last call for more nodes is over. A later round begins as soon as the minimum is here: nodes that come after that are
// taken in by another round (newcomers.hpp). It may have to wait out a pause before.
//
// Pure.
#pragma once

#include <optional>
#include <string>

#include "rendezvous/membership/messages.hpp"
#include "rendezvous/membership/nodes.hpp"
#include "rendezvous/membership/options.hpp"

namespace ddp::rendezvous {

class Gathering {
 public:
  struct Facts {
    const MembershipOptions& options;
    const Nodes& nodes;
    int count = 0;                  // of nodes that can take part
    bool is_first = true;           // no round has begun yet
    bool are_nodes_missed = false;  // of the last round: silent, or still ending it
    bool are_all_away = false;      // none of the last round is here, and some may still run (Quorum)
  };
  struct Next {
    bool is_complete = false;  // the round begins now
    TimePoint deadline{};      // else: when to ask again
    std::optional<std::string> print{};
  };

  void begin(TimePoint ends);
  TimePoint ends() const { return ends_; }

  // The first round does not begin before that time, unless the wait is over: nodes that still have a round may be
  // about to come.
  void hold_first_round_until(TimePoint time) { no_first_round_before_ = time; }
  // After rounds that failed at once (RestartPause).
  void pause_until(TimePoint time) { pause_ends_ = time; }
  // Nor, with fewer nodes than the maximum, before that one: somebody may call who serves the job elsewhere.
  void listen_until(TimePoint time) { listens_until_ = time; }
  // Nodes of the last round come again. The next one waits for a moment while others are still missed, because they
  // may have what the workers have kept.
  void await_returning(TimePoint now);
  // As --orphan-limit by default: workers that nobody in the job reaches are stopped after it, and what they have kept
  // is lost. Nodes that are all away are awaited so long.
  static constexpr std::chrono::seconds kAwayMax{60};
  void forget_nodes_away() { away_until_.reset(); }  // a round has been started by all its nodes
  void end_last_call() { last_call_ends_.reset(); }

  Next next(const Facts& facts, TimePoint now);

 private:
  TimePoint wait_for_nodes_away(const Facts& facts, TimePoint now);

  TimePoint ends_{};
  std::optional<TimePoint> last_call_ends_;
  bool is_wait_said_ = false, is_away_said_ = false;
  TimePoint no_first_round_before_{}, listens_until_{}, pause_ends_{};
  std::optional<TimePoint> returning_until_, away_until_;
};

std::string names_of(const Nodes& nodes);  // of their hosts: "gpu1, gpu2 (node rank 3) and 4 more"

}  // namespace ddp::rendezvous
