// Decides what one ddprun does in its job: when workers start and stop, what membership and the workers are told, what
// the user reads, and with which outcome ddprun ends.
//
// Pure: events, the time and a few facts go in, actions come out. No process, socket, clock or file. The agent performs
// the actions (launcher/agent/agent.hpp); the simulation drives the same class in a virtual world.
//
// It joins four parts: WorkerGroup decides how the workers of this node start and end, StopVote at which step they can
// stop, RoundProgress how far they have come, RoundReport how long the report of a round waits for the reasons of
// failures. How the node stays in touch with membership is decided elsewhere
// (rendezvous/link/session.hpp); what that reports comes in as events.
//
// Threads: one caller at a time (the agent's event loop).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/address.hpp"
#include "launcher/node/link_check.hpp"
#include "launcher/node/node_words.hpp"
#include "launcher/node/round_report.hpp"
#include "launcher/worker_group/round_progress.hpp"
#include "launcher/worker_group/stop_vote.hpp"
#include "launcher/worker_group/worker_group.hpp"
#include "rendezvous/link/link_lost.hpp"
#include "rendezvous/membership/messages.hpp"
#include "rendezvous/membership/outcome.hpp"
#include "rendezvous/worker_link/message.hpp"

namespace ddp::launcher {

struct NodeOptions {
  int workers = 1;    // on this node
  int nodes_max = 1;  // 1: the job has this node alone
  std::chrono::milliseconds grace{30'000};
  std::chrono::milliseconds signal_window{0};   // see WorkerGroupOptions
  std::chrono::milliseconds restart_window{0};  // 0: restarts count for the whole job
  std::string host_name;
  bool leaves_when_stopped = false;            // at SIGTERM or a warning, if the job can go on without this node
  std::chrono::milliseconds time_limit{0};     // of the job, for the user; 0: none
  std::optional<TimePoint> time_is_over_at{};  // when it is over here
};

class NodeCore {
 public:
  // What is so when an event comes.
  struct Facts {
    TimePoint now;
    std::chrono::milliseconds job_time{0};        // now, on the job's clock
    bool serves_endpoint = false;                 // membership is in this process
    bool is_joined = false;                       // somebody hears what is sent to membership
    std::chrono::milliseconds job_time_error{0};  // of job_time, at most, either way
  };

  // Events: signals to this ddprun. `sender` is for the user, as sender_of() has it.
  struct StopSignalled {
    int signal_number;
    std::string sender{};
  };
  struct WarningSignalled {  // one that is passed on to the workers
    int signal_number;
    std::string sender{};
  };
  struct SuspendSignalled {};   // ctrl-z
  struct ContinueSignalled {};  // also after this process was suspended
  struct OutputClosed {};       // nobody reads the standard output any more

  // Events: the guardian and the workers.
  using WorkersChanged = std::vector<WorkerGroupEvent>;  // at one instant
  struct TreeHasSignal {                                 // a SignalTree was carried out
    int signal_number;
  };
  struct SignalForwarded {  // a ForwardSignal was
    int handlers;           // workers that handle it
  };
  struct GuardianEnded {
    Ending ending;
    std::int64_t pid = 0;
    bool is_tree_left = false;  // processes of the job could not be killed at once
  };
  struct WorkerSaid {
    int local_rank;
    worker_link::FromWorker message;
  };
  struct WorkerLinkLost {
    int local_rank;
    LinkFault fault;
  };
  struct OutputOpened {                    // the answer to OpenOutput
    std::optional<std::string> why_not{};  // it failed
  };
  struct OutputWritten {};  // the answer to the last CloseOutput
  struct SpawnFailed {      // of these local ranks, none has been started
    std::string why;
    std::vector<int> local_ranks;
  };
  struct ReasonsRead {  // the answer to ReadReasons
    std::uint64_t number;
    Reasons reasons{};
  };
  struct SeatsFailed {  // these local ranks get no seat
    std::string why;
    std::vector<int> local_ranks;
  };

  // Events: membership.
  struct MembershipSaid {
    rendezvous::ToAgent message;
    std::string endpoint_host{};  // as workers of this node reach it
  };
  struct MembershipLost {
    rendezvous::LinkLost why;
  };
  struct Orphaned {  // nobody who knows of the job is in reach
    std::string why;
    bool may_reseat = true;  // what the workers have kept is worth taking along to the others
  };
  struct StoreIsOpen {
    RoundId round;
    std::uint16_t port = 0;
  };
  struct StoreFailed {
    std::string why;
  };
  struct LinksTried {  // the answer to TryLinks
    bool do_work;
  };
  // The answer to Finish: what others are to be told has gone, or nobody took it in time; and what this node writes at
  // its end is written. Then the user reads how the job has ended, and nothing after it.
  struct Delivered {};

  using Event = std::variant<StopSignalled, WarningSignalled, SuspendSignalled, ContinueSignalled, OutputClosed,
                             WorkersChanged, TreeHasSignal, SignalForwarded, GuardianEnded, WorkerSaid, WorkerLinkLost,
                             OutputOpened, OutputWritten, SpawnFailed, ReasonsRead, SeatsFailed, MembershipSaid,
                             MembershipLost, Orphaned, StoreIsOpen, StoreFailed, LinksTried, Delivered>;

  // Actions: what the user reads.
  struct Print {  // one line of ddprun's
    std::string line;
    bool is_limited = false;  // another host can cause it without end
  };
  struct PrintText {  // whole lines, as they are
    std::string text;
    bool is_error = false;
    bool is_report = false;  // on how the job has ended
  };
  struct PrintError {
    rendezvous::LinkLost error;
    bool is_report = true;
  };
  struct PrintLogFolder {};  // where the job's log files are, if there are any

  // Actions: messages.
  struct Send {  // to membership
    rendezvous::ToMembership message;
  };
  // To membership. The failures lack what only the process knows: pid, program, the name of the file that holds all of
  // the worker's stderr, or the last lines of it where there is no such file.
  struct SendRoundEnded {
    rendezvous::RoundEnded message;
  };
  struct SendToWorker {
    int local_rank;
    std::variant<worker_link::LinkRoundOver, worker_link::LinkStop, worker_link::LinkPrepareStop> message;
  };
  struct SendToWorkers {  // all that listen
    std::variant<worker_link::LinkStop, worker_link::LinkStopAt> message;
  };

  // Actions: processes. The round is round(); signals and kills are WorkerGroup's.
  struct OpenOutput {  // of these workers, in the round that begins; OutputOpened is the answer, later
    std::vector<int> local_ranks;
  };
  struct Spawn {  // their output is open; SpawnFailed is the answer where not all of them can be
    std::vector<int> local_ranks;
  };
  struct Rethrow {};  // the error of that: nothing of the job has run, so ddprun ends as it does at wrong input
  struct Seat {
    std::vector<int> local_ranks;
    bool are_all = false;  // workers of this node
  };
  struct ForwardSignal {  // to the workers that handle it
    int signal_number;
  };
  struct SuspendProcess {};  // this one; ContinueSignalled is the answer
  struct ForgetTree {};      // what is left of it can't be killed
  struct ReadReasons {       // why these workers failed, from their files; ReasonsRead is the answer, later
    std::uint64_t number;
    std::vector<int> local_ranks;
  };

  // Actions: the rest.
  struct BeginStore {  // a fresh one; StoreIsOpen or StoreFailed is the answer
    RoundId round;
    std::set<base::Address> users;
  };
  // Of the round's workers, but for those that live on; OutputOpened comes no more. OutputWritten is the answer, later:
  // never, or too late, where a disk hangs.
  struct CloseOutput {
    std::vector<int> kept{};
  };
  struct SetFarewell {  // the guardian is to tell membership when this process has ended
    bool is_wanted;
  };
  struct TryLinks {  // whether these agents answer; LinksTried is the answer, later
    std::vector<rendezvous::Elsewhere> to;
  };
  // Of this node in round(): a later ddprun on this host can prove by it that this one has ended.
  struct WriteRecord {};
  struct TellCaller {  // a launcher that has started this one
    rendezvous::FailureReport cause;
    bool is_own = false;  // a worker of this node, in the last round
  };
  // Nothing of the job is left here: end, once all that was said has gone. Delivered is the answer, later; then output
  // may still be waited for.
  struct Finish {
    rendezvous::Outcome outcome;
    bool keeps_log = true;  // the newest lines of ddprun's log are written to a file
  };
  struct Quit {};  // end at once

  using Action = std::variant<Print, PrintText, PrintError, PrintLogFolder, Send, SendRoundEnded, SendToWorker,
                              SendToWorkers, OpenOutput, Spawn, Rethrow, Seat, SignalWorker, KillWorker, SignalTree,
                              KillOrphans, KillTree, ForwardSignal, SuspendProcess, ForgetTree, ReadReasons, BeginStore,
                              CloseOutput, SetFarewell, TryLinks, WriteRecord, TellCaller, Finish, Quit>;
  using Actions = std::vector<Action>;

  explicit NodeCore(NodeOptions options);

  [[nodiscard]] Actions step(const Event& event, const Facts& facts);

  // Does what has fallen due; calling early or twice is harmless.
  [[nodiscard]] Actions tick(const Facts& facts);

  // When tick() next has work; empty while only an event can change anything.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  const rendezvous::StartRound& round() const { return start_; }       // the current one, or the last
  const std::string& store_address() const { return store_address_; }  // of that round, for this node's workers
  const std::optional<rendezvous::FinishJob>& verdict() const { return verdict_; }
  bool tells_of_job() const { return start_.round.term != 0 && start_.group_rank == 0; }  // for all nodes
  bool is_finished() const { return finished_; }
  bool has_spawned() const { return has_spawned_; }  // a worker was started, in whatever round

 private:
  void take(const StopSignalled& event);
  void take(const WarningSignalled& event);
  void take(const SuspendSignalled& event);
  void take(const ContinueSignalled& event);
  void take(const OutputClosed& event);
  void take(const WorkersChanged& event);
  void take(const TreeHasSignal& event);
  void take(const SignalForwarded& event);
  void take(const GuardianEnded& event);
  void take(const WorkerSaid& event);
  void take(const WorkerLinkLost& event);
  void take(const OutputOpened& event);
  void take(const OutputWritten& event);
  void take(const SpawnFailed& event);
  void take(const ReasonsRead& event);
  void take(const SeatsFailed& event);
  void take(const MembershipSaid& event);
  void take(const MembershipLost& event);
  void take(const Orphaned& event);
  void take(const StoreIsOpen& event);
  void take(const StoreFailed& event);
  void take(const LinksTried& event);
  void take(const Delivered& event);

  void hear(const rendezvous::Welcome& message);
  void hear(const rendezvous::Elsewhere&) {}  // these five are the session's
  void hear(const rendezvous::HostLeaves&) {}
  void hear(const rendezvous::TimeTold&) {}
  void hear(const rendezvous::Refused&) {}
  void hear(const rendezvous::RoundEstablished&) {}
  void hear(const rendezvous::PrepareStop& message);
  void hear(const rendezvous::StopAt& message);
  void hear(const rendezvous::OpenStore& message);
  void hear(const rendezvous::StartRound& message);
  void hear(const rendezvous::StopRound& message);
  void hear(const rendezvous::FinishJob& message);
  void hear(const rendezvous::CheckLinks& message) { link_check_.begin(message.to, facts_.now); }

  void hear_worker(int local_rank, const worker_link::LinkHello& message);
  void hear_worker(int local_rank, const worker_link::LinkLeft& message);
  void hear_worker(int local_rank, const worker_link::LinkProgress& message);
  void hear_worker(int local_rank, const worker_link::LinkStopReady& message);
  void hear_worker(int local_rank, const worker_link::LinkStopping& message);

  void step_workers(const std::vector<WorkerGroupEvent>& events);
  void follow(const WorkerGroup::Actions& actions);
  void follow(const SpawnWorkers& action);
  void follow(const SeatWorkers& action);
  void follow(const TellRoundOver& action);
  void follow(const SignalWorker& action);
  void follow(const KillWorker& action) { out_.emplace_back(action); }
  void follow(const SignalTree& action);
  void follow(const KillOrphans& action) { out_.emplace_back(action); }
  void follow(const KillTree& action) { out_.emplace_back(action); }
  void follow(const TellStarted& action);
  void follow(const TellFailure& action);
  void follow(const TellEnded& action);

  void stop(int signal_number);
  void stop_if_time_is_over();
  void end_after_stop();
  void quit_if_hurried();
  void spawn_if_ready();
  void tell_of_survivors();
  void spawn_nobody();
  void end_round();
  void vote();
  void end_with(const rendezvous::Outcome& outcome);
  void finish(const rendezvous::Outcome& outcome);
  void end_without_guardian();
  void print(std::string line) { out_.emplace_back(Print{std::move(line)}); }
  void print_of_job(std::string line);
  void send_if_any(std::optional<rendezvous::RoundEnded> report);
  void send(rendezvous::ToMembership message) { out_.emplace_back(Send{std::move(message)}); }
  bool may_leave(int signal_number) const;
  bool leaves_if_warned() const { return options_.leaves_when_stopped && !is_alone(); }
  bool is_alone() const { return options_.nodes_max == 1; }
  bool is_of_round(std::uint32_t number) const { return number == start_.round.number; }
  rendezvous::FailureReport report_of(const WorkerFailure& failure) const;
  std::chrono::milliseconds job_time_at(TimePoint time) const;

  NodeOptions options_;
  WorkerGroup group_;
  StopVote vote_;
  RoundProgress progress_;
  RoundReport round_report_;
  LinkCheck link_check_;
  std::optional<TellEnded> ended_;               // the round, whose output is still to be written
  std::optional<GuardianEnded> guardian_ended_;  // likewise
  TimePoint output_limit_;                       // of either
  Facts facts_;                                  // of the event that is being taken in
  Actions out_;
  RoundId opening_;                      // the round whose store is asked for
  std::set<base::Address> store_users_;  // as far as they have been told
  rendezvous::StartRound start_;
  std::string store_address_;
  std::optional<rendezvous::FinishJob> verdict_;
  Actions last_words_;                    // printed when all is delivered, the error last
  std::vector<int> to_spawn_;             // once their output is open, and no process of those before them is left
  std::optional<TimePoint> spawn_until_;  // once it is open: for so long those may take to go
  std::optional<TimePoint> output_is_late_at_;
  bool is_tree_empty_ = true;                   // nothing is left of what was spawned
  std::string why_not_spawned_;                 // any worker of the round
  std::string stop_why_;                        // why the round is being stopped, as far as it is known here
  std::optional<std::string> why_orphaned_;     // why this node stops it by itself
  std::optional<std::uint64_t> stop_call_;      // of should_stop(), at which the round's workers are to stop
  std::optional<rendezvous::Outcome> outcome_;  // once the job has ended, while workers that are left are stopped
  int stops_while_waiting_ = 0;
  int stop_signal_ = 0;  // that this ddprun was told to stop by
  int warning_ = 0;      // that came last, and from whom
  std::string warned_by_;
  bool is_time_over_ = false;  // which this node was stopped for, and by nothing before
  bool in_job_ = false;        // membership counts this node in
  bool has_spawned_ = false;
  bool is_step_hoped_for_ = false;                  // the user was told that the workers are asked for one
  bool is_delivered_ = false, is_hurried_ = false;  // after Finish: a signal says that output is not waited for
  bool finished_ = false, stop_announced_ = false, suspending_ = false, lost_ = false, told_slow_disk_ = false;
};

}  // namespace ddp::launcher
