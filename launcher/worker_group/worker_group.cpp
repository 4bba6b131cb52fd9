#include "launcher/worker_group/worker_group.hpp"

#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

// A second signal kills at once; one that comes this soon after the first is the same wish (`timeout` sends two).
constexpr auto kSameWish = 200ms;

// Membership gives the nodes 1 s to agree on a step; but at most half of the grace.
constexpr std::chrono::milliseconds kStepLimit = 3s;

// Time for SIGKILL to take effect; what is left after it sits in the kernel and obeys nobody.
constexpr auto kKillLimit = 30s;

// For a worker that other ranks have missed to leave the round, as a live one does at once.
constexpr auto kLifeSignLimit = 1s;

// A worker notices the end of another one as soon as its agent does, and may tell of it first.
constexpr auto kCauseLimit = 100ms;

// For a worker that has left its groups by itself to end; but at most half of the grace.
constexpr std::chrono::milliseconds kDepartureLimit = 2s;

using DepartureKind = worker_link::Departure::Kind;

bool is_departing(const Worker& worker) {
  return worker.runs && !worker.has_left && !worker.is_hung && worker.departure &&
         worker.departure->kind != DepartureKind::for_others;
}

// Others miss it, and it has not said why it leaves either.
bool is_silent(const Worker& worker) { return worker.runs && worker.is_missed && !worker.departure; }

// For a worker to say for whom it leaves, when others have said that.
constexpr std::chrono::milliseconds kGatherLimit = 1s;

bool is_our_kind_of_kill(const Ending& ending) {
  return ending.kind == Ending::Kind::killed && ending.value == SIGKILL;
}

bool is_failure(const WorkerGroupEvent& event) {
  const auto* ended = std::get_if<WorkerEnded>(&event);
  return ended != nullptr && !ended->ending.is_success();
}

}  // namespace

bool has_any_ended(const std::vector<WorkerGroupEvent>& events) {
  return std::any_of(events.begin(), events.end(),
                     [](const WorkerGroupEvent& event) { return std::holds_alternative<WorkerEnded>(event); });
}

WorkerGroup::Actions WorkerGroup::step(const std::vector<WorkerGroupEvent>& events, TimePoint now) {
  auto ordered = events;
  const auto first_failure = std::find_if(ordered.begin(), ordered.end(), is_failure);
  const auto killed = std::find_if(ordered.begin(), ordered.end(), [](const WorkerGroupEvent& event) {
    return is_failure(event) && std::get<WorkerEnded>(event).ending.kind == Ending::Kind::killed;
  });
  if (killed != ordered.end() && first_failure < killed) std::rotate(first_failure, killed, killed + 1);

  Actions out;
  first_failed_at_.reset();
  for (const auto& event : ordered) std::visit([&](const auto& what) { take(what, now, out); }, event);
  return out;
}

void WorkerGroup::take(const BeginRound&, TimePoint now, Actions& out) {
  if (phase_ != Phase::idle) return;
  stopped_at_step_ = 0;
  if (stop_signal_ != 0) {  // told to stop meanwhile: nothing begins any more
    stopped_ = options_.workers;
    return end_round(false, now, out);
  }
  phase_ = Phase::running;
  round_began_ = now;
  stopped_ = stopped_at_step_ = 0;
  reseats_ = gathers_ = told_started_ = is_killed_before_look_ = false;
  std::vector<int> spawned, seated;
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    auto& worker = worker_of(local_rank);
    const bool waits = worker.runs && worker.has_left;
    (waits ? seated : spawned).push_back(local_rank);
    worker = waits ? Worker{.runs = true, .is_started = true, .takes_seats = true, .takes_stops = worker.takes_stops}
                   : Worker{.runs = true};
  }
  running_count_ = options_.workers;
  if (!spawned.empty()) {
    looked_at_.reset();  // the guardian will look again
    out.emplace_back(SpawnWorkers{std::move(spawned)});
  }
  if (!seated.empty()) out.emplace_back(SeatWorkers{std::move(seated)});
  tell_started_if_all_are(out);
}

void WorkerGroup::take(const WorkerStarted& event, TimePoint, Actions& out) {
  worker_of(event.local_rank).is_started = true;
  if (phase_ != Phase::idle) tell_started_if_all_are(out);
}

void WorkerGroup::take(const WorkerSaidHello& event, TimePoint now, Actions& out) {
  auto& worker = worker_of(event.local_rank);
  worker.takes_seats = event.takes_seats;
  worker.takes_stops = event.takes_stops;
  if (worker.runs && worker.has_left && !event.takes_seats) {  // it would wait in vain
    out.emplace_back(KillWorker{event.local_rank});
    return;
  }
  // It was to stop at the step by itself, and can't any more: the others would wait for it.
  if (phase_ == Phase::running && grace_ends_ && worker.runs && !event.takes_stops)
    return begin_stop(stop_signal_ != 0 ? stop_signal_ : SIGTERM, false, now, out);
  const bool is_told_only = phase_ == Phase::stopping && reseats_ && worker.runs && !worker.has_left;
  if (!is_told_only || event.takes_seats) return;
  begin_to_spare(now);
  if ((spare_ends_ && is_spared(worker)) || std::exchange(worker.is_signalled, true)) return;
  out.emplace_back(SignalWorker{event.local_rank, SIGTERM});  // it goes on for itself, and leaves nothing any more
}

void WorkerGroup::take(const WorkerStopping& event, TimePoint, Actions&) {
  worker_of(event.local_rank).is_stopping = true;
}

void WorkerGroup::take(const WorkerLeft& event, TimePoint now, Actions& out) {
  auto& worker = worker_of(event.local_rank);
  if (phase_ == Phase::idle || !worker.runs || std::exchange(worker.has_left, true)) return;
  worker.was_in_call = worker.was_in_call || event.was_in_call;
  if (phase_ != Phase::running) return clear_if_all_are_out(now, out);
  auto failure = failure_of(event.local_rank, worker, {Ending::Kind::left, 0, false}, now);
  failure.message = event.why;
  if (!event.hung_ranks.empty()) return fail(std::move(failure), event.hung_ranks, now, out);
  if (unexplained_) return;
  unexplained_ = std::move(failure);
  deadline_ = now + kCauseLimit;
}

// A warning is not meant to end anybody, and who had come to the step has kept its state.
bool WorkerGroup::has_stopped_at_step(const Worker& worker, const Ending& ending) const {
  const bool is_by_warning = ending.kind == Ending::Kind::killed && ending.value == SIGUSR1;
  return worker.is_stopping && (ending.is_success() || (is_by_warning && options_.signal_window.count() > 0));
}

void WorkerGroup::take(const WorkerDeparted& event, TimePoint now, Actions&) {
  auto& worker = worker_of(event.local_rank);
  // Who has our signal may give up its group because of that; what was said before the signal has been heard by then.
  if (!worker.runs || worker.is_signalled || worker.departure == event.departure) return;
  worker.departure = event.departure;
  worker.departed = now;
  worker.unreached = event.departure.unreached;
  worker.was_in_call = event.departure.was_in_call;
}

// By itself: before the stop, or in spite of it, being only told that the round is over, or not even that.
bool WorkerGroup::has_failed_by_itself(const Worker& worker, const WorkerEnded& event) const {
  if (phase_ == Phase::running || worker.is_hung) return true;
  if (event.was_ending && stop_signal_ == 0 && !worker.has_left && !is_our_kill(event.ending)) return true;
  if (phase_ == Phase::stopping && first_failed_at_) return true;
  if (phase_ != Phase::stopping && phase_ != Phase::clearing) return false;
  return !worker.is_signalled && ((reseats_ && worker.takes_seats) || is_departing(worker) || gathers_);
}

// It may be that of kill() where the guardian had not yet looked who was ending: then it sees what kill() did.
bool WorkerGroup::is_our_kill(const Ending& ending) const {
  return is_killed_before_look_ && ending.kind == Ending::Kind::killed && ending.value == SIGKILL;
}

// Another node's workers may miss a killed worker, and end, before its death is noticed here: then it has died before
// our signal was sent, or of a SIGKILL, which ddprun does not send while a round is stopped. (A process with much
// memory takes a while to end.) Where a worker here has failed first, what is killed after our signal follows from it.
// Who has left may be killed by us. A stop of this ddprun is different: who signals ddprun may signal the workers too.
bool WorkerGroup::was_killed_by_others(const Worker& worker, const Ending& ending) const {
  if (phase_ != Phase::stopping || stop_signal_ != 0 || worker.has_left || ending.kind != Ending::Kind::killed)
    return false;
  if (tree_signal_ != 0 && !is_tree_signalled_) return !is_schedulers_signal(ending);
  return ending.value == SIGKILL;
}

// A worker that hung when it was signalled, and has died of that as it was: in no handler of its own.
bool WorkerGroup::has_hung_until_signalled(const Worker& worker, const WorkerEnded& event) const {
  return phase_ == Phase::stopping && stop_signal_ == 0 && worker.is_hung && worker.is_signalled && !worker.has_left &&
         !event.was_ending && event.ending.kind == Ending::Kind::killed && event.ending.value == SIGTERM;
}

// It ended before our own signal was sent, and what failed first may have been the consequence.
bool WorkerGroup::has_died_of_schedulers(const Ending& ending) const {
  return options_.signal_window.count() > 0 && phase_ == Phase::stopping && tree_signal_ != 0 && !is_tree_signalled_ &&
         !failures_.empty() && is_schedulers_signal(ending);
}

void WorkerGroup::take(const WorkerEnded& event, TimePoint now, Actions& out) {
  auto& worker = worker_of(event.local_rank);
  if (!worker.runs) return;
  const bool may_be_killed = worker.takes_seats && is_our_kind_of_kill(event.ending);
  if (phase_ == Phase::stopping && worker.is_signalled && !may_be_killed)
    worker.is_hung = has_hung_until_signalled(worker, event);
  const auto was = std::exchange(worker, ended(worker));
  --running_count_;
  if (!looked_at_ && !event.ending.is_success()) looked_at_ = now;
  if (phase_ == Phase::idle || phase_ == Phase::unsure) {
    if (was.has_left) kill_orphans(out);  // it waited; in the next round another takes its place
    return;
  }
  const bool has_stopped = has_stopped_at_step(was, event.ending);
  if (has_stopped) {
    ++stopped_at_step_;
    if (phase_ != Phase::running) --stopped_;  // all that ran then were counted when the stop began
  }
  const bool is_by_itself = has_failed_by_itself(was, event) || was_killed_by_others(was, event.ending) ||
                            has_died_of_schedulers(event.ending);
  const bool is_cut_short = stop_signal_ == 0 && was.departure && was.departure->kind == DepartureKind::own_error;
  if (!has_stopped && !event.ending.is_success() && !has_failed(event.local_rank) && (is_by_itself || is_cut_short)) {
    const bool is_end_its_own = is_by_itself || event.ending.kind == Ending::Kind::exited;
    auto failure =
        failure_of(event.local_rank, was, is_end_its_own ? event.ending : Ending{Ending::Kind::left, 0, false}, now);
    failure.was_ending = event.was_ending;
    if (event.was_ending && looked_at_) failure.ending_since = std::min(failure.at, *looked_at_);
    if (phase_ == Phase::running) {
      auto hung_ranks = was.departure ? was.departure->hung_ranks : std::vector<int>();
      return fail(std::move(failure), std::move(hung_ranks), now, out);
    }
    note_failure(std::move(failure));
    --stopped_;
  } else if (phase_ == Phase::running && running_count_ == 0) {
    return begin_stop(SIGTERM, false, now, out);  // only descendants can be left, or TreeEmpty follows at once
  }
  go_on_without_one(now, out);
}

void WorkerGroup::take(const WorkerNotSpawned& event, TimePoint now, Actions& out) {
  auto& worker = worker_of(event.local_rank);
  if (!worker.runs || phase_ == Phase::running || phase_ == Phase::idle) return;
  worker = {};
  --running_count_;
  go_on_without_one(now, out);
}

void WorkerGroup::go_on_without_one(TimePoint now, Actions& out) {
  if (phase_ == Phase::clearing) kill_orphans(out);
  if (phase_ == Phase::stopping && running_count_ == 0 && tree_signal_ != SIGTERM)
    signal_all(SIGTERM, out);  // children that a shell put in the background ignore SIGINT
  clear_if_all_are_out(now, out);
}

void WorkerGroup::take(const OrphansGone&, TimePoint now, Actions& out) {
  if (orphans_asked_ > 0) --orphans_asked_;
  if (phase_ == Phase::clearing && orphans_asked_ == 0) end_round(false, now, out);
}

void WorkerGroup::take(const TreeEmpty&, TimePoint now, Actions& out) {
  if (phase_ != Phase::idle && running_count_ == 0) end_round(false, now, out);
}

void WorkerGroup::take(const TreeSignalled& event, TimePoint now, Actions&) {
  if (!looked_at_) looked_at_ = now;  // the guardian looks before it sends the first signal
  if (event.signal_number == tree_signal_) is_tree_signalled_ = true;
}

void WorkerGroup::take(const WarningSignal& event, TimePoint now, Actions& out) {
  note_own_signal(event.signal_number, now);
  if (phase_ == Phase::unsure) end_round(false, now, out);
}

void WorkerGroup::take(const StopSignal& event, TimePoint now, Actions& out) {
  note_own_signal(event.signal_number, now);
  if (stop_signal_ != 0) {
    if (now - stop_signal_came_ > kSameWish && phase_ != Phase::idle && phase_ != Phase::killing) kill(now, out);
    return;
  }
  stop_signal_ = event.signal_number;
  stop_signal_came_ = now;
  if (phase_ == Phase::unsure) return end_round(false, now, out);
  if (phase_ != Phase::running || grace_ends_) return;
  if (!stops_at_step(event.signal_number)) return stop_by_signal(now, out);
  grace_ends_ = now + options_.grace;
  step_ends_ = now + std::min(kStepLimit, options_.grace / 2);
}

void WorkerGroup::take(const StopAtStep&, TimePoint now, Actions&) {
  step_ends_.reset();
  if (phase_ == Phase::running && !grace_ends_) grace_ends_ = now + options_.grace;
}

void WorkerGroup::take(const StopWorkers& event, TimePoint now, Actions& out) {
  if (phase_ == Phase::idle) return;
  const bool was_gathering = std::exchange(gathers_, event.gathers && (gathers_ || phase_ == Phase::running));
  if (phase_ == Phase::running) {
    begin_stop(event.signal_number, event.reseat, now, out);
  } else if (reseats_ && !event.reseat && phase_ != Phase::killing && (phase_ != Phase::unsure || running_count_ > 0)) {
    phase_ = Phase::stopping;
    deadline_ = now + options_.grace;
    reseats_ = false;
    signal_all(event.signal_number, out);
  }
  if (was_gathering && !gathers_ && std::none_of(workers_.begin(), workers_.end(), is_departing)) signal_spared(out);
  for (const int local_rank : event.hung) {
    auto& worker = worker_of(local_rank);
    if (!worker.runs || worker.has_left || worker.is_hung) continue;
    if (event.kill) {
      kill_hung(local_rank, out);
      continue;
    }
    worker.is_missed = true;
    if (reseats_ && worker.takes_seats && !missed_until_) missed_until_ = now + kLifeSignLimit;  // it is told to leave
  }
  if (event.kill && (phase_ == Phase::stopping || phase_ == Phase::clearing)) kill(now, out);
}

void WorkerGroup::kill_hung(int local_rank, Actions& out) {
  worker_of(local_rank).is_hung = true;
  out.emplace_back(KillWorker{local_rank});
}

// Those that have given no sign of life.
void WorkerGroup::kill_missed(Actions& out) {
  missed_until_.reset();
  if (phase_ != Phase::stopping) return;
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    auto& worker = worker_of(local_rank);
    if (is_silent(worker) && !worker.has_left && worker.takes_seats && !worker.is_hung) kill_hung(local_rank, out);
  }
}

void WorkerGroup::take(const EndJob&, TimePoint now, Actions& out) {
  if (phase_ != Phase::idle) return take(StopWorkers{SIGTERM}, now, out);
  if (!waiting().empty()) begin_stop(SIGTERM, false, now, out);
}

std::optional<TimePoint> WorkerGroup::next_deadline() const {
  auto first = deadline_;
  const bool runs = phase_ == Phase::running;
  for (const auto& other :
       {runs ? grace_ends_ : std::nullopt, runs ? step_ends_ : std::nullopt, spare_ends_, missed_until_})
    if (other && (!first || *other < *first)) first = other;
  return first;
}

WorkerGroup::Actions WorkerGroup::tick(TimePoint now) {
  Actions out;
  if (phase_ == Phase::running && grace_ends_ && now >= *grace_ends_) {
    kill(now, out);
    return out;
  }
  if (phase_ == Phase::running && step_ends_ && now >= *step_ends_) {
    stop_by_signal(now, out);
    return out;
  }
  if (spare_ends_ && now >= *spare_ends_) signal_spared(out);
  if (missed_until_ && now >= *missed_until_) kill_missed(out);
  if (!deadline_ || now < *deadline_) return out;
  switch (phase_) {
    case Phase::running: fail(*std::exchange(unexplained_, std::nullopt), {}, now, out); break;
    case Phase::stopping: reseats_ ? kill_who_stays(now, out) : kill(now, out); break;
    case Phase::killing:
    case Phase::clearing: end_round(true, now, out); break;
    case Phase::unsure: end_round(false, now, out); break;
    case Phase::idle: break;
  }
  return out;
}

// The first failure of the round here.
void WorkerGroup::fail(WorkerFailure failure, std::vector<int> hung_ranks, TimePoint now, Actions& out) {
  note_failure(failure);
  const bool runs_on = failure.ending.kind == Ending::Kind::left;
  const bool is_for_others = !failure.accused.empty();
  if (!runs_on) first_failed_at_ = now;
  out.emplace_back(TellFailure{std::move(failure), std::move(hung_ranks)});
  if (!runs_on) kill_orphans(out);  // the cause's own children have lost their parent: nothing to wait for
  gathers_ = is_for_others;
  begin_stop(SIGTERM, !signalled_from_, now, out);
  if (runs_on) --stopped_;
  clear_if_all_are_out(now, out);
}

void WorkerGroup::stop_by_signal(TimePoint now, Actions& out) {
  signalled_ = Signalled{stop_signal_, now};
  begin_stop(stop_signal_, false, now, out);
}

// Where another round may follow, those that take seats are only told. The grace is one, also where it began with the
// hope that the workers stop at a step.
void WorkerGroup::begin_stop(int signal_number, bool may_reseat, TimePoint now, Actions& out) {
  phase_ = Phase::stopping;
  stopped_ = running_count_;
  unexplained_.reset();
  reseats_ = may_reseat && !grace_ends_ && std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
               return worker.runs && worker.takes_seats;
             });
  deadline_ = grace_ends_.value_or(now + options_.grace);
  grace_ends_.reset();
  step_ends_.reset();
  begin_to_spare(now);
  if (!reseats_) return signal_all(signal_number, out);
  tree_signal_ = 0;
  TellRoundOver told;
  Actions signals;
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    auto& worker = worker_of(local_rank);
    if (!worker.runs || worker.has_left) continue;
    if (worker.takes_seats) {
      told.local_ranks.push_back(local_rank);
    } else if (!spare_ends_ || !is_spared(worker)) {
      worker.is_signalled = true;
      signals.emplace_back(SignalWorker{local_rank, signal_number});
    }
  }
  if (!told.local_ranks.empty()) out.emplace_back(std::move(told));
  out.insert(out.end(), signals.begin(), signals.end());
  clear_if_all_are_out(now, out);
}

// It is about to end by itself, or may be about to say for whom.
bool WorkerGroup::is_spared(const Worker& worker) const {
  const bool is_told = reseats_ && worker.takes_seats;
  return is_departing(worker) || (gathers_ && worker.runs && !worker.has_left && !worker.departure && !is_told);
}

void WorkerGroup::begin_to_spare(TimePoint now) {
  if (stop_signal_ != 0 || spare_ends_) return;
  const auto is_any = [&](const auto& condition) { return std::any_of(workers_.begin(), workers_.end(), condition); };
  if (!is_any([this](const Worker& worker) { return is_spared(worker); })) return;
  spare_ends_ = now + std::min(is_any(is_departing) ? kDepartureLimit : kGatherLimit, options_.grace / 2);
}

void WorkerGroup::signal_spared(Actions& out) {
  spare_ends_.reset();
  gathers_ = false;
  if (phase_ != Phase::stopping) return;
  bool is_any_late = false;
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    auto& worker = worker_of(local_rank);
    if (!worker.runs || worker.is_signalled || (tree_signal_ == 0 && (worker.takes_seats || worker.has_left))) continue;
    worker.is_signalled = is_any_late = true;
    worker.is_hung = worker.is_hung || is_silent(worker);  // it had the time to say why it does not come
    if (tree_signal_ == 0) out.emplace_back(SignalWorker{local_rank, SIGTERM});
  }
  if (tree_signal_ != 0 && is_any_late) out.emplace_back(SignalTree{tree_signal_, {}});  // the others have it
}

void WorkerGroup::signal_all(int signal_number, Actions& out) {
  tree_signal_ = signal_number;
  is_tree_signalled_ = false;
  std::vector<int> spared;
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    auto& worker = worker_of(local_rank);
    worker.is_signalled = !spare_ends_ || !is_spared(worker);
    if (!worker.is_signalled) spared.push_back(local_rank);
  }
  out.emplace_back(SignalTree{signal_number, std::move(spared)});
}

void WorkerGroup::kill_orphans(Actions& out) {
  ++orphans_asked_;
  out.emplace_back(KillOrphans{});
}

// The grace is over; who has left may stay.
void WorkerGroup::kill_who_stays(TimePoint now, Actions& out) {
  phase_ = Phase::killing;
  deadline_ = now + kKillLimit;
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    auto& worker = worker_of(local_rank);
    if (!worker.runs || worker.has_left) continue;
    worker.is_signalled = true;
    worker.is_hung = worker.is_hung || is_silent(worker);
    out.emplace_back(KillWorker{local_rank});
  }
}

void WorkerGroup::kill(TimePoint now, Actions& out) {
  if (phase_ == Phase::running) stopped_ = running_count_;
  is_killed_before_look_ = phase_ == Phase::running || (tree_signal_ != 0 && !is_tree_signalled_);
  phase_ = Phase::killing;
  deadline_ = now + kKillLimit;
  grace_ends_.reset();
  step_ends_.reset();
  spare_ends_.reset();
  unexplained_.reset();
  reseats_ = false;
  for (auto& worker : workers_) worker.is_hung = worker.is_hung || is_silent(worker);
  out.emplace_back(KillTree{});
}

void WorkerGroup::tell_started_if_all_are(Actions& out) {
  const bool all =
      std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.is_started; });
  if (all && !std::exchange(told_started_, true)) out.emplace_back(TellStarted{});
}

// Every worker has ended or left. Where none waits, TreeEmpty comes by itself.
void WorkerGroup::clear_if_all_are_out(TimePoint now, Actions& out) {
  if (!reseats_ || (phase_ != Phase::stopping && phase_ != Phase::killing) || running_count_ == 0) return;
  for (const auto& worker : workers_)
    if (worker.runs && !worker.has_left) return;
  phase_ = Phase::clearing;
  deadline_ = now + kKillLimit;
  kill_orphans(out);
}

// What failed first may have died of the scheduler's signal, which ddprun gets a moment later: then no other round
// follows.
void WorkerGroup::end_round(bool tree_survived, TimePoint now, Actions& out) {
  if (!tree_survived && !signalled_from_ && !failures_.empty() && is_schedulers_signal(failures_.front().ending)) {
    const auto known_at = failures_.front().at + options_.signal_window;
    if (now < known_at) {
      phase_ = Phase::unsure;
      deadline_ = known_at;
      return;
    }
  }
  phase_ = Phase::idle;
  deadline_.reset();
  spare_ends_.reset();
  missed_until_.reset();
  unexplained_.reset();
  TellEnded ended{std::exchange(failures_, {}), stopped_, tree_survived, stopped_at_step_,
                  std::exchange(signalled_, {})};
  ended.were_in_call = true;
  std::set<int> unreached;
  for (const auto& worker : workers_) {
    unreached.insert(worker.unreached.begin(), worker.unreached.end());
    ended.were_in_call = ended.were_in_call && worker.was_in_call && !worker.is_hung;
  }
  ended.unreached.assign(unreached.begin(), unreached.end());
  if (signalled_from_) {
    const auto count = ended.failures.size() - *signalled_from_;
    ended.signalled = Signalled{own_signal_, ended.failures[*signalled_from_].at};
    ended.failures.resize(*signalled_from_);
    ended.stopped += static_cast<int>(count);
    signalled_from_.reset();
  }
  out.emplace_back(std::move(ended));
}

// By leaving, when it dies after that: one worker fails once in a round.
bool WorkerGroup::has_failed(int local_rank) const {
  return std::any_of(failures_.begin(), failures_.end(),
                     [&](const WorkerFailure& failure) { return failure.local_rank == local_rank; });
}

void WorkerGroup::note_own_signal(int signal_number, TimePoint now) {
  own_signal_ = signal_number;
  own_signal_came_ = now;
  for (std::size_t i = 0; i < failures_.size(); ++i) judge(i);
}

// The scheduler's signal goes before what ended by itself shortly before that was heard of.
void WorkerGroup::note_failure(WorkerFailure failure) {
  const auto is_consequence_of_it = [&](const WorkerFailure& first) {
    return first.ending.kind == Ending::Kind::exited && !is_schedulers_signal(first.ending) &&
           failure.at - first.at < options_.signal_window;
  };
  const bool goes_first = !signalled_from_ && !failures_.empty() && is_schedulers_signal(failure.ending) &&
                          !failure.is_hung && is_consequence_of_it(failures_.front());
  const auto at = failures_.insert(goes_first ? failures_.begin() : failures_.end(), std::move(failure));
  judge(static_cast<std::size_t>(at - failures_.begin()));
}

void WorkerGroup::judge(std::size_t failure) {
  const auto& its = failures_[failure];
  if (signalled_from_ || own_signal_ == 0 || !is_schedulers_signal(its.ending)) return;
  if (options_.signal_window.count() > 0 && std::chrono::abs(its.at - own_signal_came_) <= options_.signal_window)
    signalled_from_ = failure;
}

std::vector<int> WorkerGroup::waiting() const {
  std::vector<int> out;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].runs && workers_[i].has_left) out.emplace_back(static_cast<int>(i));
  return out;
}

std::vector<Voter> WorkerGroup::voters() const {
  std::vector<Voter> out;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (const auto& worker = workers_[i]; worker.runs)
      out.push_back({static_cast<int>(i), phase_ == Phase::running && worker.takes_stops && !worker.has_left});
  return out;
}

bool WorkerGroup::can_stop_at_step() const {
  const auto all = voters();
  return phase_ == Phase::running &&
         std::all_of(all.begin(), all.end(), [](const Voter& voter) { return voter.takes_stops; });
}

bool WorkerGroup::stops_at_step(int signal_number) const { return signal_number != SIGQUIT && can_stop_at_step(); }

WorkerFailure WorkerGroup::failure_of(int local_rank, const Worker& worker, const Ending& ending, TimePoint now) const {
  WorkerFailure failure{local_rank, ending, now};
  failure.is_hung = worker.is_hung;
  if (worker.departure) {
    failure.message = worker.departure->why;
    failure.accused = worker.departure->ranks;
    failure.is_own_error = worker.departure->kind == DepartureKind::own_error;
    if (failure.is_own_error) failure.at = worker.departed;
  }
  failure.ending_since = failure.at;
  failure.after = std::chrono::duration_cast<std::chrono::milliseconds>(failure.at - round_began_);
  return failure;
}

}  // namespace ddp::launcher
