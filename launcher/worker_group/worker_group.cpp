#include "launcher/worker_group/worker_group.hpp"

#include <algorithm>
#include <csignal>
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

// A worker notices the end of another one as soon as its agent does, and may tell of it first.
constexpr auto kCauseLimit = 100ms;

bool is_failure(const WorkerGroupEvent& event) {
  const auto* ended = std::get_if<WorkerEnded>(&event);
  return ended != nullptr && !ended->ending.is_success();
}

}  // namespace

WorkerGroup::Actions WorkerGroup::step(const std::vector<WorkerGroupEvent>& events, TimePoint now) {
  auto ordered = events;
  const auto first_failure = std::find_if(ordered.begin(), ordered.end(), is_failure);
  const auto killed = std::find_if(ordered.begin(), ordered.end(), [](const WorkerGroupEvent& event) {
    return is_failure(event) && std::get<WorkerEnded>(event).ending.kind == Ending::Kind::killed;
  });
  if (killed != ordered.end() && first_failure < killed) std::rotate(first_failure, killed, killed + 1);

  Actions out;
  first_failed_at_.reset();
  for (const auto& event : ordered)
    std::visit([&](const auto& what) { take(what, now, out); }, event);
  return out;
}

void WorkerGroup::take(const BeginRound&, TimePoint now, Actions& out) {
  if (phase_ != Phase::idle) return;
  stopped_at_step_ = 0;
  if (stop_signal_ != 0) {  // told to stop meanwhile: nothing begins any more
    stopped_ = options_.workers;
    return end_round(false, out);
  }
  phase_ = Phase::running;
  round_began_ = now;
  stopped_ = stopped_at_step_ = 0;
  reseats_ = told_started_ = false;
  std::vector<int> spawned, seated;
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    auto& worker = worker_of(local_rank);
    const bool waits = worker.runs && worker.has_left;
    (waits ? seated : spawned).push_back(local_rank);
    worker = waits ? Worker{.runs = true, .is_started = true, .takes_seats = true, .takes_stops = worker.takes_stops}
                   : Worker{.runs = true};
  }
  running_count_ = options_.workers;
  if (!spawned.empty()) out.emplace_back(SpawnWorkers{std::move(spawned)});
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
  if (!is_told_only || event.takes_seats || std::exchange(worker.is_signalled, true)) return;
  out.emplace_back(SignalWorker{event.local_rank, SIGTERM});  // it goes on for itself, and leaves nothing any more
}

void WorkerGroup::take(const WorkerStopping& event, TimePoint, Actions&) { worker_of(event.local_rank).is_stopping = true; }

void WorkerGroup::take(const WorkerLeft& event, TimePoint now, Actions& out) {
  auto& worker = worker_of(event.local_rank);
  if (phase_ == Phase::idle || !worker.runs || std::exchange(worker.has_left, true)) return;
  if (phase_ != Phase::running) return clear_if_all_are_out(now, out);
  auto failure = failure_of(event.local_rank, {Ending::Kind::left, 0, false}, now);
  failure.message = event.why;
  if (!event.hung_ranks.empty()) return fail(std::move(failure), event.hung_ranks, now, out);
  if (unexplained_) return;
  unexplained_ = std::move(failure);
  deadline_ = now + kCauseLimit;
}

// By itself: before the stop, or in spite of it, being only told that the round is over.
bool WorkerGroup::has_failed_by_itself(const Worker& worker) const {
  if (phase_ == Phase::running || worker.is_hung) return true;
  if (phase_ == Phase::stopping && first_failed_at_) return true;
  return (phase_ == Phase::stopping || phase_ == Phase::clearing) && reseats_ && worker.takes_seats && !worker.is_signalled;
}

void WorkerGroup::take(const WorkerEnded& event, TimePoint now, Actions& out) {
  auto& worker = worker_of(event.local_rank);
  if (!worker.runs) return;
  const auto was = std::exchange(worker, Worker{});
  --running_count_;
  if (phase_ == Phase::idle) {
    if (was.has_left) kill_orphans(out);  // it waited; in the next round another takes its place
    return;
  }
  if (event.ending.is_success() && was.is_stopping) {
    ++stopped_at_step_;
    if (phase_ != Phase::running) --stopped_;  // all that ran then were counted when the stop began
  }
  if (!event.ending.is_success() && has_failed_by_itself(was)) {
    auto failure = failure_of(event.local_rank, event.ending, now);
    if (phase_ == Phase::running) return fail(std::move(failure), {}, now, out);
    failures_.push_back(std::move(failure));
    --stopped_;
  } else if (phase_ == Phase::running && running_count_ == 0) {
    return begin_stop(SIGTERM, false, now, out);  // only descendants can be left, or TreeEmpty follows at once
  }
  if (phase_ == Phase::clearing) kill_orphans(out);
  if (phase_ == Phase::stopping && running_count_ == 0 && tree_signal_ != SIGTERM)
    signal_all(SIGTERM, out);  // children that a shell put in the background ignore SIGINT
  clear_if_all_are_out(now, out);
}

void WorkerGroup::take(const OrphansGone&, TimePoint, Actions& out) {
  if (orphans_asked_ > 0) --orphans_asked_;
  if (phase_ == Phase::clearing && orphans_asked_ == 0) end_round(false, out);
}

void WorkerGroup::take(const TreeEmpty&, TimePoint, Actions& out) {
  if (phase_ != Phase::idle && running_count_ == 0) end_round(false, out);
}

void WorkerGroup::take(const StopSignal& event, TimePoint now, Actions& out) {
  if (stop_signal_ != 0) {
    if (now - stop_signal_came_ > kSameWish && phase_ != Phase::idle && phase_ != Phase::killing) kill(now, out);
    return;
  }
  stop_signal_ = event.signal_number;
  stop_signal_came_ = now;
  if (phase_ != Phase::running || grace_ends_) return;
  if (!stops_at_step(event.signal_number)) return begin_stop(event.signal_number, false, now, out);
  grace_ends_ = now + options_.grace;
  step_ends_ = now + std::min(kStepLimit, options_.grace / 2);
}

void WorkerGroup::take(const StopAtStep&, TimePoint now, Actions&) {
  step_ends_.reset();
  if (phase_ == Phase::running && !grace_ends_) grace_ends_ = now + options_.grace;
}

void WorkerGroup::take(const StopWorkers& event, TimePoint now, Actions& out) {
  if (phase_ == Phase::idle) return;
  if (phase_ == Phase::running) {
    begin_stop(event.signal_number, event.reseat, now, out);
  } else if (reseats_ && !event.reseat && phase_ != Phase::killing) {
    phase_ = Phase::stopping;
    deadline_ = now + options_.grace;
    reseats_ = false;
    signal_all(event.signal_number, out);
  }
  for (const int local_rank : event.hung) {
    auto& worker = worker_of(local_rank);
    if (!worker.runs || worker.has_left || std::exchange(worker.is_hung, true)) continue;
    out.emplace_back(KillWorker{local_rank});
  }
  if (event.kill && (phase_ == Phase::stopping || phase_ == Phase::clearing)) kill(now, out);
}

void WorkerGroup::take(const EndJob&, TimePoint now, Actions& out) {
  if (phase_ != Phase::idle) return take(StopWorkers{SIGTERM}, now, out);
  if (!waiting().empty()) begin_stop(SIGTERM, false, now, out);
}

std::optional<TimePoint> WorkerGroup::next_deadline() const {
  auto first = deadline_;
  if (phase_ == Phase::running)
    for (const auto& other : {grace_ends_, step_ends_})
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
    begin_stop(stop_signal_, false, now, out);
    return out;
  }
  if (!deadline_ || now < *deadline_) return out;
  switch (phase_) {
    case Phase::running: fail(*std::exchange(unexplained_, std::nullopt), {}, now, out); break;
    case Phase::stopping: reseats_ ? kill_who_stays(now, out) : kill(now, out); break;
    case Phase::killing:
    case Phase::clearing: end_round(true, out); break;
    case Phase::idle: break;
  }
  return out;
}

// The first failure of the round here.
void WorkerGroup::fail(Failure failure, std::vector<int> hung_ranks, TimePoint now, Actions& out) {
  failures_.push_back(failure);
  const bool runs_on = failure.ending.kind == Ending::Kind::left;
  if (!runs_on) first_failed_at_ = now;
  out.emplace_back(TellFailure{std::move(failure), std::move(hung_ranks)});
  if (!runs_on) kill_orphans(out);  // the cause's own children have lost their parent: nothing to wait for
  begin_stop(SIGTERM, true, now, out);
  if (runs_on) --stopped_;
  clear_if_all_are_out(now, out);
}

// Where another round may follow, those that take seats are only told. The grace is one, also where it began with the hope
// that the workers stop at a step.
void WorkerGroup::begin_stop(int signal_number, bool may_reseat, TimePoint now, Actions& out) {
  phase_ = Phase::stopping;
  stopped_ = running_count_;
  unexplained_.reset();
  reseats_ = may_reseat && !grace_ends_ && std::any_of(workers_.begin(), workers_.end(),
                                       [](const Worker& worker) { return worker.runs && worker.takes_seats; });
  deadline_ = grace_ends_.value_or(now + options_.grace);
  grace_ends_.reset();
  step_ends_.reset();
  if (!reseats_) return signal_all(signal_number, out);
  tree_signal_ = 0;
  TellRoundOver told;
  Actions signals;
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    auto& worker = worker_of(local_rank);
    if (!worker.runs || worker.has_left) continue;
    if (worker.takes_seats) {
      told.local_ranks.push_back(local_rank);
    } else {
      worker.is_signalled = true;
      signals.emplace_back(SignalWorker{local_rank, signal_number});
    }
  }
  if (!told.local_ranks.empty()) out.emplace_back(std::move(told));
  out.insert(out.end(), signals.begin(), signals.end());
  clear_if_all_are_out(now, out);
}

void WorkerGroup::signal_all(int signal_number, Actions& out) {
  tree_signal_ = signal_number;
  for (auto& worker : workers_) worker.is_signalled = true;
  out.emplace_back(SignalTree{signal_number});
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
    out.emplace_back(KillWorker{local_rank});
  }
}

void WorkerGroup::kill(TimePoint now, Actions& out) {
  if (phase_ == Phase::running) stopped_ = running_count_;
  phase_ = Phase::killing;
  deadline_ = now + kKillLimit;
  grace_ends_.reset();
  step_ends_.reset();
  unexplained_.reset();
  reseats_ = false;
  out.emplace_back(KillTree{});
}

void WorkerGroup::tell_started_if_all_are(Actions& out) {
  const bool all = std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.is_started; });
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

void WorkerGroup::end_round(bool tree_survived, Actions& out) {
  phase_ = Phase::idle;
  deadline_.reset();
  unexplained_.reset();
  out.emplace_back(TellEnded{std::exchange(failures_, {}), stopped_, tree_survived, stopped_at_step_});
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
  return phase_ == Phase::running && std::all_of(all.begin(), all.end(), [](const Voter& voter) { return voter.takes_stops; });
}

bool WorkerGroup::stops_at_step(int signal_number) const { return signal_number != SIGQUIT && can_stop_at_step(); }

Failure WorkerGroup::failure_of(int local_rank, const Ending& ending, TimePoint now) const {
  return {local_rank, ending, now, std::chrono::duration_cast<std::chrono::milliseconds>(now - round_began_), {}};
}

}  // namespace ddp::launcher
