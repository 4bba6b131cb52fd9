// Decides when the workers of this node start, are told to stop, are killed and start again.
//
// Pure: events and the time go in, actions come out. No process, no clock, no signal handler, so tests can play any
// order of deaths. One group lives through all rounds; a round is one start of all workers.
//
// The rules: the first worker that fails is the cause, and whatever ends after the group began to stop is a consequence.
// Every stop is a signal, one grace, then SIGKILL. A round is over only when no process of it is left, workers'
// descendants in other sessions included.
//
// Threads: one caller at a time (the agent's event loop).
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/worker_group/exit_code.hpp"

namespace ddp::launcher {

using TimePoint = std::chrono::steady_clock::time_point;

// Events.
struct WorkerEnded { int local_rank; Ending ending; };
struct TreeEmpty {};                       // no process of the round is left
struct StopSignal { int signal_number; };  // ddprun itself was told to stop
using WorkerGroupEvent = std::variant<WorkerEnded, TreeEmpty, StopSignal>;

// The first worker that failed in a round.
struct Failure {
  int local_rank = 0;
  Ending ending;
  std::chrono::milliseconds after{0};  // since its round began
  int round = 0;
  int stopped_count = 0;  // workers that were still running, and so were stopped
};

// How the job ended.
struct Outcome {
  int exit_code = 0;
  std::optional<Failure> failure;  // of the last round, where a worker was the cause
  int stop_signal = 0;             // where ddprun was told to stop
  bool tree_survived = false;      // some process could not be killed in time
};

// Actions.
struct StartRound { int round; };          // spawn every worker; rounds count from 0, restarts are rounds
struct SignalTree { int signal_number; };  // to every process of the round
struct KillOrphans {};                     // SIGKILL to what workers that ended have left behind
struct KillTree {};                        // SIGKILL to every process of the round, until none is left
struct AnnounceRestart { Failure failure; };
struct Finish { Outcome outcome; };
using WorkerGroupAction = std::variant<StartRound, SignalTree, KillOrphans, KillTree, AnnounceRestart, Finish>;

struct WorkerGroupOptions {
  int workers = 1;
  int restarts_max = 0;
  std::chrono::milliseconds grace{30'000};
};

class WorkerGroup {
 public:
  using Actions = std::vector<WorkerGroupAction>;

  explicit WorkerGroup(WorkerGroupOptions options) : options_(options) {}

  // The first round. Called once, before anything else.
  [[nodiscard]] Actions start(TimePoint now);

  // Takes in what happened at one instant, in the order of its happening. Of workers that failed in one batch, one that
  // was killed goes before one that ended by itself, because the second is more often the consequence.
  [[nodiscard]] Actions step(const std::vector<WorkerGroupEvent>& events, TimePoint now);

  // Does what has fallen due; calling early or twice is harmless.
  [[nodiscard]] Actions tick(TimePoint now);

  [[nodiscard]] std::optional<TimePoint> next_deadline() const { return deadline_; }

  int round() const { return round_; }

 private:
  enum class Phase { running, stopping, killing, finished };

  void take(const WorkerEnded& event, TimePoint now, Actions& out);
  void take(const StopSignal& event, TimePoint now, Actions& out);
  void round_is_over(TimePoint now, Actions& out);
  void begin_stop(int signal_number, TimePoint now, Actions& out);
  void kill(TimePoint now, Actions& out);
  void begin_round(TimePoint now, Actions& out);
  void finish(bool tree_survived, Actions& out);
  bool is_restart_due() const;  // but for a stop signal

  WorkerGroupOptions options_;
  Phase phase_ = Phase::running;
  int round_ = 0;
  int running_count_ = 0;
  TimePoint round_began_;
  std::optional<Failure> failure_;
  int stop_signal_ = 0;  // that ddprun itself got
  int tree_signal_ = 0;  // that the tree got last
  TimePoint stop_signal_came_;
  std::optional<TimePoint> deadline_;
};

}  // namespace ddp::launcher
