// Decides how the workers of this node start, are told to stop and are killed, in one round after another.
//
// Pure: events and the time go in, actions come out. No process, no clock, no signal handler, so tests can play any
// order of deaths. When a round begins, and what follows it, is membership's (rendezvous/membership).
//
// The rules: the first worker that fails stops the node's round at once, and whatever ends after that is a consequence.
// Every stop is a signal, one grace, then SIGKILL. A round is over only when no process of it is left, workers'
// descendants in other sessions included.
//
// Workers that take seats are not signalled where another round may follow: they are told that the round is over, leave
// its group, and wait for a seat in the next one; who has not left when the grace is over is killed. The round is over
// when every worker has ended or left, and nothing is left of those that have ended. A worker that leaves while no
// failure is known is a failure itself, unless the reason comes to light within a moment.
//
// Where all workers take stops, a stop of the whole job signals none of them at first: they run on, with the same
// grace, until they have ended by themselves at the step that the job agrees on. What fails meanwhile has failed by
// itself. Where nobody says at which step, because membership is out of reach, the ordinary stop follows.
//
// A round may end because a worker has left for other ranks, and nobody has failed by itself. Then workers that have
// said nothing yet get the signal a moment later: they may be about to say which ranks they wait for.
//
// A worker that others miss may be well, behind a broken network. So it is killed only if it does not answer either: if
// it takes seats, and does not leave the round at once when it is told to. Other workers have the signal and the grace.
// A worker that others miss, that says nothing in the moment before the signal, and that dies of the signal, has hung:
// that is a failure, and ddprun ended it.
//
// A worker that said that it has left its groups by itself is about to end, perhaps with a failure that explains those
// of its peers. A stop that is not ddprun's own lets it go on for a moment. What it ends with then counts.
//
// A scheduler signals every process of the job, this ddprun and its workers in any order. Where that may be, a worker
// that dies of such a signal shortly before or after ddprun's own is a consequence, as is what fails after it, or ended
// by itself a moment earlier without being killed; so the end of the round is not told before it is known whether
// ddprun gets one. The others are stopped at once all the same: whatever it was, the round is over.
//
// Threads: one caller at a time (the agent's event loop).
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/worker_group/exit_code.hpp"
#include "launcher/worker_group/stop_vote.hpp"
#include "launcher/worker_group/worker.hpp"

namespace ddp::launcher {

using TimePoint = std::chrono::steady_clock::time_point;

// Events.
struct BeginRound {};  // only between rounds
struct WorkerStarted {
  int local_rank;
};  // it was spawned
struct WorkerSaidHello {
  int local_rank;
  bool takes_seats;
  bool takes_stops = false;
};
struct WorkerStopping {
  int local_rank;
};                   // it has come to the agreed step, and is about to end
struct WorkerLeft {  // the round's group, and waits for a seat
  int local_rank;
  std::string why{};
  std::vector<int> hung_ranks{};  // of the world, that it waited for in vain
  bool was_in_call = false;       // as LinkLeft
};
struct WorkerDeparted {  // from its groups; it runs on
  int local_rank;
  worker_link::Departure departure;
};
struct WorkerEnded {
  int local_rank;
  Ending ending;
  bool was_ending = false;  // at the first failure here, and before any signal of ours
};
struct WorkerNotSpawned {  // nor will it be: its round is being stopped
  int local_rank;
};
struct OrphansGone {};  // one answer to each KillOrphans: nothing is left of workers that have ended
struct TreeEmpty {};    // no process of the round is left
struct TreeSignalled {
  int signal_number;
};  // the last SignalTree has been carried out: who ended before did not end of it
struct StopSignal {
  int signal_number;
};  // this ddprun was told to stop; a second one kills
struct WarningSignal {
  int signal_number;
};                     // this ddprun was told that it will be
struct StopAtStep {};  // the job is to stop, and has agreed on a step: the grace begins
struct StopWorkers {   // membership wants the round to end
  int signal_number;
  bool kill = false;
  bool reseat = false;      // another round follows
  std::vector<int> hung{};  // local ranks that others miss: to be killed, unless they answer
  bool gathers = false;     // as StopRound
};
struct EndJob {};  // no round follows: those that wait end too
using WorkerGroupEvent = std::variant<BeginRound, WorkerStarted, WorkerSaidHello, WorkerStopping, WorkerLeft,
                                      WorkerDeparted, WorkerEnded, WorkerNotSpawned, OrphansGone, TreeEmpty,
                                      TreeSignalled, StopSignal, WarningSignal, StopAtStep, StopWorkers, EndJob>;

bool has_any_ended(const std::vector<WorkerGroupEvent>& events);

// A worker that failed by itself, before the node's workers were stopped.
struct WorkerFailure {
  int local_rank = 0;
  Ending ending;
  TimePoint at;
  std::chrono::milliseconds after{0};  // since its round began
  std::string message{};               // why it left
  std::vector<int> accused{};          // ranks of the job that it left for
  bool is_own_error = false;           // it said that it left for an error of its own; `at` is when it did
  bool was_ending = false;             // as WorkerEnded
  TimePoint ending_since{};            // its end had begun at this time, or before; `at` if nothing earlier is known
  bool is_hung = false;                // ddprun ended it for missing a collective
};

// Actions.
struct SpawnWorkers {
  std::vector<int> local_ranks;
};
struct SeatWorkers {
  std::vector<int> local_ranks;
};  // those that wait
struct TellRoundOver {
  std::vector<int> local_ranks;
};
struct SignalWorker {
  int local_rank;
  int signal_number;
};  // to it and its descendants
struct KillWorker {
  int local_rank;
};                   // SIGKILL to the same
struct SignalTree {  // to every process of the round, and of workers that wait
  int signal_number;
  std::vector<int> spared{};  // but not to these, yet
};
struct KillOrphans {};  // SIGKILL to what workers that ended have left behind, until nothing is left
struct KillTree {};     // SIGKILL to every process of the round, until none is left
struct TellStarted {};  // to membership: all workers are spawned, or have their seats
struct TellFailure {    // to membership, at once
  WorkerFailure failure;
  std::vector<int> hung_ranks{};  // of the world
};
struct Signalled {  // workers were ended by a signal that ddprun got too, be it by ddprun
  int signal_number = 0;
  TimePoint at;  // the first, or when ddprun began to
};
struct TellEnded {  // to membership: no process of the round is left here, but workers that wait for a seat
  std::vector<WorkerFailure> failures;
  int stopped = 0;             // workers that were running when the stop began, and did not fail by themselves
  bool tree_survived = false;  // some process could not be killed in time
  int stopped_at_step = 0;     // workers that ended well at the agreed step; not among `stopped`
  std::optional<Signalled> signalled{};  // what failed from then on is among `stopped`
  std::vector<int> unreached{};          // by some worker; ranks of the job
  bool were_in_call = false;             // every worker has left a call that did not complete
};
using WorkerGroupAction = std::variant<SpawnWorkers, SeatWorkers, TellRoundOver, SignalWorker, KillWorker, SignalTree,
                                       KillOrphans, KillTree, TellStarted, TellFailure, TellEnded>;

struct WorkerGroupOptions {
  int workers = 1;
  std::chrono::milliseconds grace{30'000};
  // Between a worker's death by a signal that a scheduler sends to every process, and ddprun's own; 0: none does that.
  std::chrono::milliseconds signal_window{0};
};

class WorkerGroup {
 public:
  using Actions = std::vector<WorkerGroupAction>;

  explicit WorkerGroup(WorkerGroupOptions options)
      : options_(options), workers_(static_cast<std::size_t>(options.workers)) {}

  // Takes in what happened at one instant, in the order of its happening. Of workers that failed in one batch, one that
  // was killed goes before one that ended by itself, because the second is more often the consequence.
  [[nodiscard]] Actions step(const std::vector<WorkerGroupEvent>& events, TimePoint now);

  // Does what has fallen due; calling early or twice is harmless.
  [[nodiscard]] Actions tick(TimePoint now);

  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  // Reset at the start of each round, except for what waiting workers have said about themselves.
  Workers& workers() { return workers_; }

  bool is_idle() const { return phase_ == Phase::idle; }
  bool is_running() const { return phase_ == Phase::running; }  // a round, that is not being stopped

  // Every KillOrphans has its answer: nothing is left of workers that have ended, be it between two rounds.
  bool are_orphans_gone() const { return orphans_asked_ == 0; }

  // Workers that have left the last round and wait for a seat.
  std::vector<int> waiting() const;

  // Workers that have not ended, and whether each can stop at a step of this round that it is told.
  std::vector<Voter> voters() const;

  // All of them can, and nothing else is under way that ends the round.
  bool can_stop_at_step() const;

  // This signal to ddprun lets them. SIGQUIT asks for core files, which the step would not leave.
  bool stops_at_step(int signal_number) const;

 private:
  enum class Phase { idle, running, stopping, killing, clearing, unsure };

  void take(const BeginRound& event, TimePoint now, Actions& out);
  void take(const WorkerStarted& event, TimePoint now, Actions& out);
  void take(const WorkerSaidHello& event, TimePoint now, Actions& out);
  void take(const WorkerStopping& event, TimePoint now, Actions& out);
  void take(const WorkerLeft& event, TimePoint now, Actions& out);
  void take(const WorkerDeparted& event, TimePoint now, Actions& out);
  void take(const WorkerEnded& event, TimePoint now, Actions& out);
  void take(const WorkerNotSpawned& event, TimePoint now, Actions& out);
  void take(const OrphansGone& event, TimePoint now, Actions& out);
  void take(const TreeEmpty& event, TimePoint now, Actions& out);
  void take(const TreeSignalled& event, TimePoint now, Actions& out);
  void take(const StopSignal& event, TimePoint now, Actions& out);
  void take(const WarningSignal& event, TimePoint now, Actions& out);
  void take(const StopAtStep& event, TimePoint now, Actions& out);
  void take(const StopWorkers& event, TimePoint now, Actions& out);
  void take(const EndJob& event, TimePoint now, Actions& out);
  bool has_failed_by_itself(const Worker& worker, const WorkerEnded& event) const;
  bool was_killed_by_others(const Worker& worker, const Ending& ending) const;
  bool is_our_kill(const Ending& ending) const;
  bool has_failed(int local_rank) const;
  bool has_died_of_schedulers(const Ending& ending) const;
  bool has_hung_until_signalled(const Worker& worker, const WorkerEnded& event) const;
  bool has_stopped_at_step(const Worker& worker, const Ending& ending) const;
  void note_own_signal(int signal_number, TimePoint now);
  void note_failure(WorkerFailure failure);
  void judge(std::size_t failure);
  void fail(WorkerFailure failure, std::vector<int> hung_ranks, TimePoint now, Actions& out);
  bool is_spared(const Worker& worker) const;
  void stop_by_signal(TimePoint now, Actions& out);
  void begin_stop(int signal_number, bool may_reseat, TimePoint now, Actions& out);
  void kill_hung(int local_rank, Actions& out);
  void kill_missed(Actions& out);
  void begin_to_spare(TimePoint now);
  void signal_spared(Actions& out);
  void signal_all(int signal_number, Actions& out);
  void kill_orphans(Actions& out);
  void go_on_without_one(TimePoint now, Actions& out);
  void kill_who_stays(TimePoint now, Actions& out);
  void kill(TimePoint now, Actions& out);
  void tell_started_if_all_are(Actions& out);
  void clear_if_all_are_out(TimePoint now, Actions& out);
  void end_round(bool tree_survived, TimePoint now, Actions& out);
  Worker& worker_of(int local_rank) { return workers_.at(static_cast<std::size_t>(local_rank)); }
  WorkerFailure failure_of(int local_rank, const Worker& worker, const Ending& ending, TimePoint now) const;

  WorkerGroupOptions options_;
  Phase phase_ = Phase::idle;
  Workers workers_;
  int running_count_ = 0;  // those that wait included
  TimePoint round_began_;
  std::optional<TimePoint> first_failed_at_;  // what fails in the same batch of events failed by itself, too
  std::optional<WorkerFailure> unexplained_;  // a worker that left while no failure is known
  std::vector<WorkerFailure> failures_;
  std::optional<std::size_t> signalled_from_;  // in failures_, the first worker that died of ddprun's own signal
  std::optional<Signalled> signalled_;         // by ddprun
  int own_signal_ = 0;                         // that ddprun got last, a warning included
  TimePoint own_signal_came_;
  int stopped_ = 0;
  int stopped_at_step_ = 0;
  bool reseats_ = false;  // the stop of this round lets workers wait for a seat
  bool gathers_ = false;  // workers are spared that have not said for whom they leave
  bool told_started_ = false;
  int orphans_asked_ = 0;               // KillOrphans that have no answer yet
  int stop_signal_ = 0;                 // that ddprun itself got
  int tree_signal_ = 0;                 // that the tree got last
  bool is_tree_signalled_ = false;      // and has it
  bool is_killed_before_look_ = false;  // SIGKILL was sent before the guardian looked who was ending
  std::optional<TimePoint> looked_at_;  // by then the guardian had looked who was ending; empty: not known
  TimePoint stop_signal_came_;
  std::optional<TimePoint> grace_ends_;    // of workers that run on to the agreed step
  std::optional<TimePoint> step_ends_;     // the wait for that step
  std::optional<TimePoint> spare_ends_;    // of workers that are not signalled yet
  std::optional<TimePoint> missed_until_;  // for a sign of life of workers that others have missed
  std::optional<TimePoint> deadline_;
};

}  // namespace ddp::launcher
