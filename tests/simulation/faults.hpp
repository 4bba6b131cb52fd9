// Does the faults that have a switch. They draw from a generator of their own, so that the histories without any stay
// what they were.
#pragma once

#include <set>
#include <vector>

#include "tests/simulation/crowd.hpp"
#include "tests/simulation/switches.hpp"
#include "tests/simulation/world.hpp"

namespace ddp::simulation {

class Faults {
 public:
  Faults(World& world, const std::set<Fault>& wanted) : world_(world), other_jobs_(world) {
    if (wanted.count(Fault::full_daemon) != 0) job().jobs_max = kPlaces;
    for (const auto fault : wanted)
      if (befalls(fault)) wanted_.push_back(fault);
  }

  // Some of those that are switched on, perhaps, within this time. Without any nothing is drawn.
  void perhaps_befall(Duration within);

  // All are over, and no other comes.
  void end();

  FaultCounts drawn() const;

 private:
  Dice& dice() { return world_.fault_dice; }
  Job& job() { return world_.job; }
  Duration limit() { return world_.job.network.heartbeat_timeout; }

  void befall(Fault fault);
  bool reset();
  bool refuse();
  bool close();
  bool block_one_way();
  bool cut();
  bool stall();
  bool kill_worker();
  bool replace_host();
  bool replace_endpoint();
  void end_of(Node& old);
  bool crash_hosts();
  void crash(Node& node);
  bool stop();
  bool slow_files();
  bool fail_calls();
  bool fill_daemon();

  void block_for(int from, int to, Duration time);
  void fail_a_worker(Node& node);
  Node* some_node();
  Duration some_time();

  static constexpr std::size_t kPlaces = 4;  // for jobs, in a daemon that can be full

  World& world_;
  std::vector<Fault> wanted_;  // that befall a history
  Crowd other_jobs_;
  FaultCounts drawn_{};
  bool is_over_ = false;
};

}  // namespace ddp::simulation
