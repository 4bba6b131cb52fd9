#include "launcher/node/node_core.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/printable.hpp"
#include "launcher/node/job_summary.hpp"
#include "launcher/node/node_words.hpp"
#include "launcher/node/run_summary.hpp"
#include "rendezvous/membership/membership.hpp"
#include "rendezvous/membership/round_end.hpp"

namespace ddp::launcher {

using rendezvous::FailureReport;
using rendezvous::RoundEnded;

namespace outcome = rendezvous::outcome;

namespace {
constexpr std::chrono::milliseconds kOutputIsLate{10'000};  // files open in less than a millisecond
constexpr std::chrono::milliseconds kOutputLimit{2'000};    // for what is left of a round to be written
constexpr std::chrono::milliseconds kOrphansLimit{30'000};  // for SIGKILL to take effect, as in a round
}  // namespace

NodeCore::NodeCore(NodeOptions options)
    : options_(std::move(options)), group_({options_.workers, options_.grace, options_.signal_window}) {}

NodeCore::Actions NodeCore::step(const Event& event, const Facts& facts) {
  facts_ = facts;
  out_.clear();
  if (guardian_ended_ && !finished_) {  // all that is left is output, for which a signal does not wait
    const bool is_over = std::holds_alternative<OutputWritten>(event) || std::holds_alternative<StopSignalled>(event);
    if (is_over) end_without_guardian();
  } else {
    std::visit([this](const auto& what) { take(what); }, event);
  }
  return std::move(out_);
}

NodeCore::Actions NodeCore::tick(const Facts& facts) {
  facts_ = facts;
  out_.clear();
  if (finished_) return {};
  if (guardian_ended_) {
    if (facts.now >= output_limit_) end_without_guardian();
    return std::move(out_);
  }
  if (output_is_late_at_ && facts.now >= *output_is_late_at_) {
    output_is_late_at_.reset();
    print(late_output_text(kOutputIsLate));
  }
  stop_if_time_is_over();
  if (ended_ && facts.now >= output_limit_) {
    if (!std::exchange(told_slow_disk_, true)) print(kLogDiskIsSlow);
    end_round();
  }
  if (const auto deadline = round_report_.deadline(); deadline && facts.now >= *deadline) {
    print(late_reasons_text(kReasonsLimit));
    send_if_any(round_report_.give_up());
  }
  if (auto to = link_check_.due(facts.now); !to.empty()) out_.emplace_back(TryLinks{std::move(to)});
  follow(group_.tick(facts.now));
  spawn_if_ready();
  return std::move(out_);
}

std::optional<TimePoint> NodeCore::next_deadline() const {
  if (finished_) return {};
  if (guardian_ended_) return output_limit_;
  auto first = group_.next_deadline();
  const auto written = ended_ ? std::optional(output_limit_) : std::nullopt;
  for (const auto& other : {output_is_late_at_, spawn_until_, written, round_report_.deadline(), link_check_.next(),
                            options_.time_is_over_at})
    if (other && (!first || *other < *first)) first = other;
  return first;
}

// --- signals ---

void NodeCore::take(const StopSignalled& event) {
  if (finished_) {  // what others are to be told still goes, which has a limit
    is_hurried_ = true;
    return quit_if_hurried();
  }
  if (outcome_ && group_.is_idle() && group_.waiting().empty()) return finish(*outcome_);  // only output was left
  if (!std::exchange(stop_announced_, true)) {
    is_step_hoped_for_ = group_.stops_at_step(event.signal_number);
    print(signal_text(event.signal_number, event.sender,
                      stop_text(options_.workers, group_.is_idle(), is_step_hoped_for_, options_.grace) +
                          (may_leave(event.signal_number) ? kLeavesIfItCan : "")));
  }
  stop(event.signal_number);
}

void NodeCore::take(const Delivered&) {
  is_delivered_ = true;
  for (auto& words : std::exchange(last_words_, {})) out_.push_back(std::move(words));
  quit_if_hurried();
}

// Only output that nobody reads is left.
void NodeCore::quit_if_hurried() {
  if (is_hurried_ && is_delivered_) out_.emplace_back(Quit{});
}

void NodeCore::take(const OutputClosed&) {
  if (finished_) return;
  stop_announced_ = true;
  stop(SIGPIPE);
}

void NodeCore::stop(int signal_number) {
  // Nobody else would tell us that it is over.
  const bool is_outside = !facts_.serves_endpoint && ((!in_job_ && !is_time_over_) || !facts_.is_joined);
  stop_signal_ = signal_number;
  // Without workers here this node waits for the others' verdict. Who serves the endpoint stays to tell them how it
  // ended; the third signal is for a node that never answers. A node alone has its verdict coming.
  if (group_.is_idle()) ++stops_while_waiting_;
  const bool is_last = !is_alone() && stops_while_waiting_ > (facts_.serves_endpoint ? 2 : 1);
  // Before the end of a round that this is the reason of.
  rendezvous::StopAsked asked{.signal_number = signal_number, .leaves = may_leave(signal_number)};
  if (is_time_over_) asked.time_limit = options_.time_limit;
  send(asked);
  step_workers({StopSignal{signal_number}});
  if (group_.is_idle() && (is_outside || is_last)) end_after_stop();
}

// A node that leaves would leave the others at work.
bool NodeCore::may_leave(int signal_number) const {
  return leaves_if_warned() && signal_number == SIGTERM && !is_time_over_;
}

// A stop that has begun for another reason has limits of its own.
void NodeCore::stop_if_time_is_over() {
  if (!options_.time_is_over_at || facts_.now < *options_.time_is_over_at) return;
  options_.time_is_over_at.reset();
  if (stop_signal_ != 0 || lost_ || outcome_) return;
  is_time_over_ = true;
  is_step_hoped_for_ = group_.stops_at_step(SIGTERM);
  stop_announced_ = true;
  print(time_over_text(options_.time_limit,
                       stop_text(options_.workers, group_.is_idle(), is_step_hoped_for_, options_.grace)));
  stop(SIGTERM);
}

// Membership does not say how the job has ended.
void NodeCore::end_after_stop() {
  last_words_.emplace_back(PrintLogFolder{});
  if (!is_time_over_) return end_with(outcome::StoppedBySignal{stop_signal_});
  last_words_.emplace_back(PrintError{time_over_error(options_.time_limit, options_.host_name, has_spawned_)});
  end_with(outcome::TimeIsOver{});
}

void NodeCore::take(const WarningSignalled& event) {
  if (finished_) return;
  warning_ = event.signal_number;
  warned_by_ = event.sender;
  out_.emplace_back(ForwardSignal{event.signal_number});
  step_workers({WarningSignal{event.signal_number}});
  send(rendezvous::StopAsked{.signal_number = event.signal_number, .is_warning = true, .leaves = leaves_if_warned()});
}

void NodeCore::take(const SignalForwarded& event) {
  const bool can_stop = group_.can_stop_at_step();
  print(warning_text(warning_, warned_by_, event.handlers, can_stop) +
        (can_stop && leaves_if_warned() ? kLeavesIfItCan : ""));
}

void NodeCore::take(const SuspendSignalled&) {
  if (!is_alone()) return print(kNoSuspension);
  suspending_ = true;
  if (!finished_) out_.emplace_back(SignalTree{SIGSTOP});
}

void NodeCore::take(const ContinueSignalled&) {
  suspending_ = false;
  if (!finished_) out_.emplace_back(SignalTree{SIGCONT});
}

void NodeCore::take(const TreeHasSignal& event) {
  if (event.signal_number == SIGSTOP && suspending_) out_.emplace_back(SuspendProcess{});  // unless continued meanwhile
}

// --- guardian and workers ---

// The guardian is not to end before us. Then its workers died with it, and what they left is ours to end.
void NodeCore::take(const GuardianEnded& event) {
  if (finished_) return;
  guardian_ended_ = event;
  output_limit_ = facts_.now + kOutputLimit;
  // If membership is in this process it ends too, and tells the others so.
  if (!event.is_tree_left && !is_alone())
    send(rendezvous::Leaving{guardian_ended_text(event.ending),
                             rendezvous::exit_code_of(outcome::GuardianEnded{event.ending})});
  out_.emplace_back(CloseOutput{});
}

// What its workers printed is written, or takes too long.
void NodeCore::end_without_guardian() {
  const GuardianEnded& event = *guardian_ended_;
  last_words_.emplace_back(PrintLogFolder{});
  last_words_.emplace_back(
      PrintError{guardian_ended_error(event.ending, event.pid, options_.workers, options_.host_name)});
  finish(outcome::GuardianEnded{event.ending});
}

void NodeCore::take(const WorkersChanged& event) {
  for (const auto& each : event) {
    has_spawned_ = has_spawned_ || std::holds_alternative<WorkerStarted>(each);
    is_tree_empty_ = is_tree_empty_ || std::holds_alternative<TreeEmpty>(each);
  }
  step_workers(event);
}

void NodeCore::take(const WorkerSaid& event) {
  std::visit([this, &event](const auto& message) { hear_worker(event.local_rank, message); }, event.message);
}

void NodeCore::take(const WorkerLinkLost& event) {
  print(link_lost_text(start_.rank_first + event.local_rank, event.fault));
  step_workers({WorkerSaidHello{event.local_rank, false, false}});
}

void NodeCore::take(const OutputOpened& event) {
  if (finished_ || to_spawn_.empty()) return;
  output_is_late_at_.reset();
  if (event.why_not) return take(SpawnFailed{*event.why_not, std::exchange(to_spawn_, {})});
  spawn_until_ = facts_.now + kOrphansLimit;
  spawn_if_ready();
}

// A worker that waited for a seat may have ended between the rounds, and have left processes: they may hold its GPU.
void NodeCore::spawn_if_ready() {
  if (!spawn_until_) return;
  const bool is_clear = is_tree_empty_ || group_.are_orphans_gone();
  if (!is_clear && facts_.now < *spawn_until_) return;
  spawn_until_.reset();
  auto local_ranks = std::exchange(to_spawn_, {});
  if (!is_clear) {
    tell_of_survivors();
    return take(SpawnFailed{kOrphansHang, std::move(local_ranks)});
  }
  is_tree_empty_ = false;
  out_.emplace_back(Spawn{std::move(local_ranks)});
}

void NodeCore::take(const OutputWritten&) {
  if (!finished_ && ended_) end_round();
}

// The round is being stopped while a disk still opens the output of its workers.
void NodeCore::spawn_nobody() {
  output_is_late_at_.reset();
  spawn_until_.reset();
  std::vector<WorkerGroupEvent> events;
  for (const int local_rank : std::exchange(to_spawn_, {})) events.emplace_back(WorkerNotSpawned{local_rank});
  if (is_tree_empty_) events.emplace_back(TreeEmpty{});  // the guardian has said so already, or had nothing to say
  step_workers(events);
}

// Where other nodes take part they are told why, and end as this node does.
void NodeCore::take(const SpawnFailed& event) {
  if (static_cast<int>(event.local_ranks.size()) < options_.workers) has_spawned_ = true;
  if (is_alone() && !has_spawned_) {
    out_.emplace_back(Rethrow{});
    return;
  }
  why_not_spawned_ = event.why;
  if (static_cast<int>(event.local_ranks.size()) == options_.workers && group_.are_orphans_gone())
    is_tree_empty_ = true;
  std::vector<WorkerGroupEvent> events;
  for (const int local_rank : event.local_ranks)
    events.emplace_back(WorkerEnded{local_rank, {Ending::Kind::not_started, EIO, false}});
  events.emplace_back(TreeEmpty{});
  step_workers(events);
}

void NodeCore::take(const ReasonsRead& event) { send_if_any(round_report_.complete(event.number, event.reasons)); }

// They wait on, and the round ends as if they had left it at once.
void NodeCore::take(const SeatsFailed& event) {
  std::vector<WorkerGroupEvent> events;
  for (const int local_rank : event.local_ranks) events.emplace_back(WorkerLeft{local_rank, event.why, {}});
  step_workers(events);
}

void NodeCore::hear_worker(int local_rank, const worker_link::LinkHello& message) {
  const bool is_known = message.version == worker_link::kVersion;
  if (message.departure && is_known && is_of_round(message.departure->round)) {
    auto departure = *message.departure;
    departure.why = base::printable(departure.why);
    step_workers({WorkerDeparted{local_rank, std::move(departure)}});
  } else if (!message.departure) {
    auto& worker = group_.workers()[static_cast<std::size_t>(local_rank)];  // it is in a group of all ranks again
    worker.departure.reset();
    worker.unreached.clear();
    worker.was_in_call = false;
  }
  step_workers({WorkerSaidHello{local_rank, message.takes_seats && is_known, message.takes_stops && is_known}});
}

void NodeCore::hear_worker(int local_rank, const worker_link::LinkLeft& message) {
  if (is_of_round(message.round))
    step_workers({WorkerLeft{local_rank, base::printable(message.why), message.hung_ranks, message.was_in_call}});
}

void NodeCore::hear_worker(int local_rank, const worker_link::LinkProgress& message) {
  if (is_of_round(message.round) && progress_.note(message, local_rank, group_.workers(), facts_.job_time))
    send(rendezvous::FirstStep{message.round});
}

void NodeCore::hear_worker(int local_rank, const worker_link::LinkStopReady& message) {
  if (!is_of_round(message.round)) return;
  group_.workers().at(static_cast<std::size_t>(local_rank)).stop_call = message.call;
  vote();
}

void NodeCore::hear_worker(int local_rank, const worker_link::LinkStopping& message) {
  if (is_of_round(message.round)) step_workers({WorkerStopping{local_rank}});
}

void NodeCore::vote() {
  const auto next = vote_.next(group_.voters(), group_.workers());
  for (const int local_rank : next.ask)
    out_.emplace_back(SendToWorker{local_rank, worker_link::LinkPrepareStop{start_.round.number}});
  if (next.answer) send(rendezvous::StopReady{start_.round.number, next.answer->call});
}

// --- membership ---

void NodeCore::take(const MembershipSaid& event) {
  if (const auto* start = std::get_if<rendezvous::StartRound>(&event.message)) {
    store_address_ = !start->master_address.empty() ? start->master_address
                     : event.endpoint_host.empty()  ? "127.0.0.1"
                                                    : event.endpoint_host;
  }
  std::visit([this](const auto& message) { hear(message); }, event.message);
}

// From here on this node's guardian can tell the others of its end.
void NodeCore::hear(const rendezvous::Welcome& message) {
  if (message.is_spare) print_of_job(spare_text(options_.nodes_max));
  out_.emplace_back(SetFarewell{true});
}

void NodeCore::hear(const rendezvous::PrepareStop& message) {
  if (!is_of_round(message.round)) return;
  vote_.ask(message.is_warning, group_.workers());
  vote();
}

void NodeCore::hear(const rendezvous::StopAt& message) {
  if (!is_of_round(message.round) || group_.is_idle()) return;
  if (std::exchange(stop_call_, message.call) != message.call && group_.can_stop_at_step())
    print_of_job(step_text(options_.workers, message.call));
  out_.emplace_back(SendToWorkers{worker_link::LinkStopAt{message.round, message.call}});
  if (message.signal_number != 0) step_workers({StopAtStep{}});
}

void NodeCore::hear(const rendezvous::OpenStore& message) {
  in_job_ = true;
  if (std::exchange(opening_, message.round) != message.round) store_users_.clear();
  for (const auto& text : message.allow) {
    const auto address = base::parse_address(text);
    if (address) store_users_.insert(*address);
    // The user alone can open the store to more than the job's nodes (--store-allow).
    if (!address || store_users_.size() > rendezvous::kRoundAddressesMax)
      return take(MembershipLost{strange_store_error()});
  }
  if (message.is_last) out_.emplace_back(BeginStore{message.round, std::exchange(store_users_, {})});
}

void NodeCore::take(const StoreIsOpen& event) { send(rendezvous::StoreOpened{event.round.number, event.port}); }

void NodeCore::take(const StoreFailed& event) { take(MembershipLost{store_failed_error(event.why)}); }

void NodeCore::take(const LinksTried& event) {
  if (link_check_.answered(event.do_work, facts_.now)) send(rendezvous::LinksWork{});
}

void NodeCore::hear(const rendezvous::StartRound& message) {
  link_check_.end();
  if (ended_) end_round();
  send_if_any(round_report_.give_up());
  in_job_ = true;
  const bool had_a_round = start_.round.term != 0, cost_a_restart = message.restart_count > start_.restart_count;
  start_ = message;
  stop_why_.clear();
  why_orphaned_.reset();
  why_not_spawned_.clear();
  stop_call_.reset();
  vote_.begin_round();
  progress_.begin_round();
  const int waiting = static_cast<int>(group_.waiting().size());
  if (message.why && had_a_round && (!message.is_why_told || waiting > 0))
    print_of_job(next_round_text(*message.why, how_it_goes_on(options_.workers, waiting, is_alone()),
                                 cost_a_restart ? restart_text(message, options_.restart_window) : ""));
  if (!is_alone() && !message.nonce.empty()) out_.emplace_back(WriteRecord{});      // an older endpoint gives none
  if (!is_alone() && facts_.serves_endpoint) out_.emplace_back(SetFarewell{true});  // to those that would serve next
  if (!is_alone()) print_of_job(round_text(message, options_.workers, store_address_));
  step_workers({BeginRound{}});
}

void NodeCore::hear(const rendezvous::StopRound& message) {
  if (!is_of_round(message.round)) return;
  if (message.why) stop_why_ = *message.why;
  if (message.why && !group_.is_idle() && !stop_announced_ && !is_alone())
    print_of_job(round_stopped_text(*message.why, options_.workers));
  StopWorkers stop{message.signal_number, message.kill, message.reseat, {}, message.gathers};
  for (const int rank : message.hung_ranks) {
    const int local_rank = rank - start_.rank_first;
    if (local_rank >= 0 && local_rank < options_.workers) stop.hung.push_back(local_rank);
  }
  step_workers({stop});
}

void NodeCore::hear(const rendezvous::FinishJob& message) {
  verdict_ = message;
  link_check_.end();
  if (tells_of_job() && message.report && message.report->rounds_count > 1)
    last_words_.emplace_back(PrintText{"ddprun: " + run_summary(*message.report, message)});
  last_words_.emplace_back(PrintLogFolder{});
  if (message.has_left) last_words_.emplace_back(Print{kHasLeft});
  const bool is_error = message.cause || message.try_this;
  const bool is_known = stop_announced_ && !is_error;
  if ((message.cause || message.what) && (!is_known || message.exit_code == rendezvous::kStoppedAtStep))
    last_words_.emplace_back(PrintText{(is_error ? "" : "ddprun: ") + job_summary(message), is_error, true});
  if (message.cause) {
    const FailureReport& cause = *message.cause;
    const bool is_own = start_.round.term != 0 && is_of_round(cause.round) && cause.local_rank < options_.workers &&
                        cause.rank == start_.rank_first + cause.local_rank;
    out_.emplace_back(TellCaller{cause, is_own});
  }
  // Nobody waits for it, unless the others are to find the next host.
  if (!message.has_left || !facts_.serves_endpoint) out_.emplace_back(SetFarewell{false});
  end_with(outcome::Told{message.exit_code});
}

// The others may have gone on without this node, which looks for them: workers that can take a seat there live on.
void NodeCore::take(const Orphaned& event) {
  if (finished_ || group_.is_idle()) return;
  why_orphaned_ = event.why;
  print(round_stopped_text(event.why, options_.workers));
  step_workers({StopWorkers{.signal_number = SIGTERM, .reseat = event.may_reseat}});
}

// Nobody tells us any more what the job does: its workers here are stopped.
void NodeCore::take(const MembershipLost& event) {
  if (finished_ || lost_ || outcome_) return;
  lost_ = true;
  out_.emplace_back(SetFarewell{false});
  if (stop_signal_ != 0 && group_.is_idle()) return end_after_stop();  // nobody is left to tell more
  last_words_.emplace_back(PrintLogFolder{});
  last_words_.emplace_back(PrintError{event.why});
  if (group_.is_idle()) return end_with(outcome::NotTogether{});
  print(round_stopped_text(event.why.what, options_.workers));
  step_workers({StopWorkers{SIGTERM}});
}

// Workers that are left, be it that they wait for a seat, get the same stop as ever, and what they print is still
// shown.
void NodeCore::end_with(const rendezvous::Outcome& outcome) {
  if (!outcome_) outcome_ = outcome;
  if (group_.waiting().empty() && group_.is_idle() && !ended_) return finish(*outcome_);
  round_report_.give_up();  // nobody waits for it any more
  step_workers({EndJob{}});
}

void NodeCore::finish(const rendezvous::Outcome& outcome) {
  if (std::exchange(finished_, true)) return;
  out_.emplace_back(Finish{outcome, rendezvous::exit_code_of(outcome) != 0});
}

// --- what the worker group decides ---

void NodeCore::step_workers(const std::vector<WorkerGroupEvent>& events) {
  if (!finished_) follow(group_.step(events, facts_.now));
}

void NodeCore::follow(const WorkerGroup::Actions& actions) {
  for (const auto& action : actions) std::visit([this](const auto& what) { follow(what); }, action);
  vote();
  if (!to_spawn_.empty() && !group_.is_running()) spawn_nobody();
  spawn_if_ready();
}

// The files on which their output goes may take long to open.
void NodeCore::follow(const SpawnWorkers& action) {
  to_spawn_ = action.local_ranks;
  output_is_late_at_ = facts_.now + kOutputIsLate;
  out_.emplace_back(OpenOutput{action.local_ranks});
}

void NodeCore::follow(const SeatWorkers& action) {
  out_.emplace_back(Seat{action.local_ranks, static_cast<int>(action.local_ranks.size()) == options_.workers});
}

void NodeCore::follow(const TellRoundOver& action) {
  for (const int local_rank : action.local_ranks)
    out_.emplace_back(SendToWorker{local_rank, worker_link::LinkRoundOver{start_.round.number, stop_why_}});
}

void NodeCore::follow(const SignalTree& action) {
  const auto count = static_cast<int>(group_.voters().size());
  if (std::exchange(is_step_hoped_for_, false) && count > 0)
    print(no_step_text(count, action.signal_number, stop_why_));
  out_.emplace_back(SendToWorkers{worker_link::LinkStop{stop_why_}});
  out_.emplace_back(action);
}

void NodeCore::follow(const SignalWorker& action) {
  out_.emplace_back(SendToWorker{action.local_rank, worker_link::LinkStop{stop_why_}});
  out_.emplace_back(action);
}

void NodeCore::follow(const TellStarted&) { send(rendezvous::RoundStarted{start_.round.number}); }

void NodeCore::follow(const TellFailure& action) {
  auto failure = report_of(action.failure);
  failure.message = action.failure.message;
  stop_why_ = failure_text(failure, options_.host_name);
  send(rendezvous::RoundFailed{start_.round.number, stop_why_, action.hung_ranks, job_time_at(action.failure.at),
                               !failure.accused.empty()});
}

// A round's files are complete before its end is reported.
void NodeCore::follow(const TellEnded& action) {
  ended_ = action;
  output_limit_ = facts_.now + kOutputLimit;
  out_.emplace_back(CloseOutput{group_.waiting()});
}

// Its output is written, or takes too long.
void NodeCore::end_round() {
  const auto action = *std::exchange(ended_, std::nullopt);
  if (action.tree_survived) tell_of_survivors();
  if (outcome_ && group_.is_idle()) return finish(*outcome_);
  if (outcome_) return;  // workers that waited for a seat are being stopped
  if (lost_) return end_with(outcome::NotTogether{});
  // Nobody waits for more; but that all have kept their state is worth telling, once the connection is there again.
  if (stop_signal_ != 0 && !facts_.is_joined && action.stopped_at_step == 0) return end_after_stop();
  RoundEnded ended{start_.round.number, {}, action.stopped, action.tree_survived, action.stopped_at_step,
                   progress_.kept()};
  ended.unreached = action.unreached;
  if (ended.unreached.size() > rendezvous::kUnreachedMax) ended.unreached.resize(rendezvous::kUnreachedMax);
  ended.were_in_call = action.were_in_call;
  ended.why_stopped = std::exchange(why_orphaned_, std::nullopt);
  if (action.signalled) {
    ended.signal_number = action.signalled->signal_number;
    ended.signalled_at = job_time_at(action.signalled->at);
  }
  for (const auto& failure : action.failures) ended.failures.push_back(report_of(failure));
  if (ended.failures.empty()) return send_if_any(std::move(ended));
  const auto first = ended.failures.begin() + static_cast<std::ptrdiff_t>(rendezvous::first_cause(ended.failures));
  std::rotate(ended.failures.begin(), first, first + 1);
  if (ended.failures.size() > rendezvous::kFailuresMax) ended.failures.resize(rendezvous::kFailuresMax);
  ReadReasons wanted;
  for (const auto& failure : ended.failures) wanted.local_ranks.push_back(failure.local_rank);
  wanted.number = round_report_.hold(std::move(ended), facts_.now);
  out_.emplace_back(std::move(wanted));
}

// --- helpers ---

// Nobody waits for them any more.
void NodeCore::tell_of_survivors() {
  out_.emplace_back(ForgetTree{});
  out_.emplace_back(PrintError{survivors_error(options_.host_name), false});
}

FailureReport NodeCore::report_of(const WorkerFailure& failure) const {
  FailureReport report;
  report.rank = start_.rank_first + failure.local_rank;
  report.local_rank = failure.local_rank;
  report.host = options_.host_name;
  report.ending = failure.ending;
  report.round = start_.round.number;
  report.after = failure.after;
  report.job_time = job_time_at(failure.at);
  report.job_time_error = facts_.job_time_error;
  report.message = failure.message.empty() ? why_not_spawned_ : failure.message;
  report.accused = failure.accused;
  if (report.accused.size() > rendezvous::kAccusedMax) report.accused.resize(rendezvous::kAccusedMax);
  report.is_own_error = failure.is_own_error;
  report.was_ending = failure.was_ending;
  report.was_ending_for = report.job_time - job_time_at(failure.ending_since);
  const bool was_killed = failure.ending.kind == Ending::Kind::killed &&
                          (failure.ending.value == SIGKILL || failure.ending.value == SIGTERM);
  if (failure.is_hung && was_killed && !failure.was_ending)
    report.killed_for = base::printable(why_killed_text(stop_why_), rendezvous::kKilledForBytesMax);
  return report;
}

std::chrono::milliseconds NodeCore::job_time_at(TimePoint time) const {
  const auto ago = std::chrono::duration_cast<std::chrono::milliseconds>(facts_.now - time);
  return std::max(std::chrono::milliseconds(0), facts_.job_time - ago);
}

void NodeCore::send_if_any(std::optional<RoundEnded> report) {
  if (report && !finished_) out_.emplace_back(SendRoundEnded{std::move(*report)});
}

// Where membership is in this process it is the user's own job that speaks; another host may speak without end.
void NodeCore::print_of_job(std::string line) { out_.emplace_back(Print{std::move(line), !facts_.serves_endpoint}); }

}  // namespace ddp::launcher
