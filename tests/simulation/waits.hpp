// A node that can reach the greater part of its job is never left waiting for more than the heartbeat limit and a
// second. Looks at the world now and then, and throws a Violation.
//
// Counted is only a wait that has no reason of its own: the node was in the newest round that completed a collective,
// and more than half of that round's nodes are alive, run, reach each other and the daemon, and are as many as a round
// needs. None of them has a process left, so nobody waits for the stop of workers. Nobody was told to stop, nobody has
// slow files, and nobody has come, gone or paused meanwhile. On top comes what the settings say: the last call for more
// nodes where the round may be larger, and the pause after rounds that end at once.
#pragma once

#include <map>

#include "tests/simulation/world.hpp"

namespace ddp::simulation {

class Waits {
 public:
  explicit Waits(World& world) : world_(world) {}

  void begin();
  // No more looks after this time.
  void end_at(TimePoint time) { ends_at_ = time; }

 private:
  struct Wait {
    TimePoint since;
    int changes_of_members = 0;  // before it
  };

  void look();
  bool is_left_waiting(const Node& node) const;
  bool is_in_reach(const Node& node, const Node& other) const;
  Duration limit(const Node& node) const;

  World& world_;
  std::optional<TimePoint> ends_at_;
  std::map<const Node*, Wait> waits_;
};

}  // namespace ddp::simulation
