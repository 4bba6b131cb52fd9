// Decides how the workers of this node start, are told to stop and are killed, in one round after another.
//
// Pure: events and the time go in, actions come out. No process, no clock, no signal handler, so tests can play any
// order of deaths. When a round begins, and what follows it, is membership's (rendezvous/membership).
//
// The rules: the first worker that fails stops the node's round at once, and whatever ends after that is a consequence.
// Every stop is a signal, one grace, then SIGKILL. A round is over only when no process of it is left, workers'
// descendants in other sessions included.
//
// Threads: one caller at a time (the agent's event loop).
#pragma once

#include <chrono>
#include <optional>
#include <variant>
#include <vector>

#include "launcher/worker_group/exit_code.hpp"

namespace ddp::launcher {

using TimePoint = std::chrono::steady_clock::time_point;

// Events.
struct BeginRound {};                      // only between rounds
struct WorkerEnded { int local_rank; Ending ending; };
struct TreeEmpty {};                       // no process of the round is left
struct StopSignal { int signal_number; };  // this ddprun was told to stop; a second one kills
struct StopWorkers { int signal_number; bool kill = false; };  // membership wants the round to end
using WorkerGroupEvent = std::variant<BeginRound, WorkerEnded, TreeEmpty, StopSignal, StopWorkers>;

// A worker that failed by itself, before the node's workers were stopped.
struct Failure {
  int local_rank = 0;
  Ending ending;
  TimePoint at;
  std::chrono::milliseconds after{0};  // since its round began
};

// Actions.
struct SpawnWorkers {};                    // every one of this node
struct SignalTree { int signal_number; };  // to every process of the round
struct KillOrphans {};                     // SIGKILL to what workers that ended have left behind
struct KillTree {};                        // SIGKILL to every process of the round, until none is left
struct TellFailure { Failure failure; };   // to membership, at once
struct TellEnded {                         // to membership: no process of the round is left here
  std::vector<Failure> failures;
  int stopped = 0;             // workers that were running when the stop began, and did not fail by themselves
  bool tree_survived = false;  // some process could not be killed in time
};
using WorkerGroupAction = std::variant<SpawnWorkers, SignalTree, KillOrphans, KillTree, TellFailure, TellEnded>;

struct WorkerGroupOptions {
  int workers = 1;
  std::chrono::milliseconds grace{30'000};
};

class WorkerGroup {
 public:
  using Actions = std::vector<WorkerGroupAction>;

  explicit WorkerGroup(WorkerGroupOptions options) : options_(options) {}

  // Takes in what happened at one instant, in the order of its happening. Of workers that failed in one batch, one that
  // was killed goes before one that ended by itself, because the second is more often the consequence.
  [[nodiscard]] Actions step(const std::vector<WorkerGroupEvent>& events, TimePoint now);

  // Does what has fallen due; calling early or twice is harmless.
  [[nodiscard]] Actions tick(TimePoint now);

  [[nodiscard]] std::optional<TimePoint> next_deadline() const { return deadline_; }

  bool is_idle() const { return phase_ == Phase::idle; }

 private:
  enum class Phase { idle, running, stopping, killing };

  void take(const BeginRound& event, TimePoint now, Actions& out);
  void take(const WorkerEnded& event, TimePoint now, Actions& out);
  void take(const TreeEmpty& event, TimePoint now, Actions& out);
  void take(const StopSignal& event, TimePoint now, Actions& out);
  void take(const StopWorkers& event, TimePoint now, Actions& out);
  void begin_stop(int signal_number, TimePoint now, Actions& out);
  void kill(TimePoint now, Actions& out);
  void end_round(bool tree_survived, Actions& out);

  WorkerGroupOptions options_;
  Phase phase_ = Phase::idle;
  int running_count_ = 0;
  TimePoint round_began_;
  std::optional<TimePoint> first_failed_at_;  // what fails in the same batch of events failed by itself, too
  std::vector<Failure> failures_;
  int stopped_ = 0;
  int stop_signal_ = 0;  // that ddprun itself got
  int tree_signal_ = 0;  // that the tree got last
  TimePoint stop_signal_came_;
  std::optional<TimePoint> deadline_;
};

}  // namespace ddp::launcher
