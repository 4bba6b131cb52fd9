// The virtual workers of one node, and the guardian that is their parent, as launcher/agent/guardian_link.hpp shows it
// to the agent.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddp/round.hpp"
#include "launcher/worker_group/worker_group.hpp"
#include "tests/simulation/clock.hpp"

namespace ddp::simulation {

class World;

struct WorkerHabits {
  Duration start_min = 5ms, start_max = 50ms;
  Duration stop_min = 1ms, stop_max = 20ms;
  int ignores_term_percent = 0;
  int leaves_orphan_percent = 0;
  int unkillable_percent = 0;          // for longer than anybody waits
  int fails_when_stopped_percent = 0;  // exits with 1 at SIGTERM
  int takes_stops_percent = 0;         // asks should_stop()
};

class Workers {
 public:
  using Tell = std::function<void(const std::vector<launcher::WorkerGroupEvent>& events)>;

  using TellCall = std::function<void(int local_rank, const RoundId& round, std::uint64_t call)>;

  // tree: the workers themselves, which are paused with their host alone.
  Workers(World& world, Process& tree, Process& guardian, Process& agent, int count, Tell tell, TellCall tell_call);

  // --- what the agent asks of its guardian ---
  void spawn(const RoundId& round);
  void signal_tree(int signal_number);
  void kill_orphans();
  void kill_tree();

  // What an agent says to its workers' libddp.
  void prepare_stop(int local_rank);
  void stop_at(std::uint64_t call);

  // The agent has ended: all of it is killed, then `done`.
  void end_all(Action done);
  // So has the guardian: the kernel kills the workers.
  void abandon();

  // --- what happens to them ---
  void fail(int local_rank, launcher::Ending ending);
  void hang(int local_rank);
  void die_slowly(int local_rank, Duration time);                  // it is killed now, and is gone only then
  void take_schedulers_signal(int local_rank, int signal_number);  // who asks should_stop() is not ended by it
  void finish_work();                                              // those that work end well, soon

  int count() const { return static_cast<int>(workers_.size()); }
  bool is_any_left() const;
  // All of them work in this round; the round is that of the last spawn.
  bool do_all_work() const { return working_ == count() && tree_.runs(); }
  bool does_work(int local_rank) const;
  const RoundId& round() const { return round_; }

 private:
  enum class State { none, starting, working, hung, dying };
  struct Worker {
    State state = State::none;
    std::uint64_t incarnation = 0;
    bool ignores_term = false, is_ending = false, takes_stops = false;
    std::optional<std::uint64_t> promised;  // the call of should_stop() that it waits in
  };

  void end_after(int local_rank, Duration time, launcher::Ending ending);
  void end(int local_rank, launcher::Ending ending);
  void end_orphan();
  void tell(std::vector<launcher::WorkerGroupEvent> events);
  void tell_if_empty(std::vector<launcher::WorkerGroupEvent> events);
  void set(Worker& worker, State state);
  Duration kill_time() const;

  World& world_;
  Process& tree_;
  Process& guardian_;
  Process& agent_;
  Tell tell_;
  TellCall tell_call_;
  std::vector<Worker> workers_;
  RoundId round_{};
  int working_ = 0;
  int orphans_ = 0;
  std::uint64_t incarnations_ = 0;
  bool is_abandoned_ = false;
  Action done_;
};

}  // namespace ddp::simulation
