#include "launcher/worker_group/worker_group.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

// A second signal kills at once; one that comes this soon after the first is the same wish (`timeout` sends two).
constexpr auto kSameWish = 200ms;

// Time for SIGKILL to take effect; what is left after it sits in the kernel and obeys nobody.
constexpr auto kKillLimit = 30s;

// Exec will fail again, so another round is of no use.
bool is_hopeless(const Ending& ending) { return ending.kind == Ending::Kind::not_started; }

bool is_failure(const WorkerGroupEvent& event) {
  const auto* ended = std::get_if<WorkerEnded>(&event);
  return ended != nullptr && !ended->ending.is_success();
}

}  // namespace

WorkerGroup::Actions WorkerGroup::start(TimePoint now) {
  Actions out;
  begin_round(now, out);
  return out;
}

WorkerGroup::Actions WorkerGroup::step(const std::vector<WorkerGroupEvent>& events, TimePoint now) {
  auto ordered = events;
  const auto first_failure = std::find_if(ordered.begin(), ordered.end(), is_failure);
  const auto killed = std::find_if(ordered.begin(), ordered.end(), [](const WorkerGroupEvent& event) {
    return is_failure(event) && std::get<WorkerEnded>(event).ending.kind == Ending::Kind::killed;
  });
  if (killed != ordered.end() && first_failure < killed) std::rotate(first_failure, killed, killed + 1);

  Actions out;
  for (const auto& event : ordered) {
    if (phase_ == Phase::finished) break;
    if (const auto* ended = std::get_if<WorkerEnded>(&event)) take(*ended, now, out);
    if (const auto* signal = std::get_if<StopSignal>(&event)) take(*signal, now, out);
    if (std::holds_alternative<TreeEmpty>(event) && running_count_ == 0) round_is_over(now, out);
  }
  return out;
}

void WorkerGroup::take(const WorkerEnded& event, TimePoint now, Actions& out) {
  --running_count_;
  if (phase_ == Phase::running && !event.ending.is_success()) {
    failure_ = Failure{event.local_rank, event.ending,
                       std::chrono::duration_cast<std::chrono::milliseconds>(now - round_began_), round_,
                       running_count_};
    out.push_back(KillOrphans{});  // the cause's own children have lost their parent: nothing to wait for
    begin_stop(SIGTERM, now, out);
  } else if (phase_ == Phase::running && running_count_ == 0) {
    begin_stop(SIGTERM, now, out);  // only descendants can be left; TreeEmpty follows at once where there are none
  } else if (phase_ == Phase::stopping && running_count_ == 0 && tree_signal_ != SIGTERM) {
    tree_signal_ = SIGTERM;  // children that a shell put in the background ignore SIGINT
    out.push_back(SignalTree{SIGTERM});
  }
}

void WorkerGroup::take(const StopSignal& event, TimePoint now, Actions& out) {
  if (stop_signal_ != 0) {
    if (now - stop_signal_came_ > kSameWish && phase_ != Phase::killing) kill(now, out);
    return;
  }
  stop_signal_ = event.signal_number;
  stop_signal_came_ = now;
  // Whoever signals ddprun may signal the workers too: then the worker's death was no failure.
  if (failure_ && failure_->ending.kind == Ending::Kind::killed && failure_->ending.value == event.signal_number)
    failure_.reset();
  if (phase_ == Phase::running) begin_stop(event.signal_number, now, out);
}

WorkerGroup::Actions WorkerGroup::tick(TimePoint now) {
  Actions out;
  if (!deadline_ || now < *deadline_) return out;
  if (phase_ == Phase::killing) {
    finish(true, out);
  } else {
    kill(now, out);
  }
  return out;
}

void WorkerGroup::round_is_over(TimePoint now, Actions& out) {
  if (!is_restart_due() || stop_signal_ != 0) return finish(false, out);
  deadline_.reset();
  out.push_back(AnnounceRestart{*failure_});
  ++round_;
  begin_round(now, out);
}

bool WorkerGroup::is_restart_due() const {
  return failure_ && round_ < options_.restarts_max && !is_hopeless(failure_->ending);
}

void WorkerGroup::finish(bool tree_survived, Actions& out) {
  deadline_.reset();
  phase_ = Phase::finished;
  const bool stopped = stop_signal_ != 0 && (!failure_ || is_restart_due());
  const int exit_code = stopped ? 128 + stop_signal_ : failure_ ? exit_code_of(failure_->ending) : tree_survived ? 1 : 0;
  out.push_back(Finish{{exit_code, stopped ? std::nullopt : failure_, stopped ? stop_signal_ : 0, tree_survived}});
}

void WorkerGroup::begin_round(TimePoint now, Actions& out) {
  phase_ = Phase::running;
  running_count_ = options_.workers;
  round_began_ = now;
  failure_.reset();
  out.push_back(StartRound{round_});
}

void WorkerGroup::begin_stop(int signal_number, TimePoint now, Actions& out) {
  phase_ = Phase::stopping;
  tree_signal_ = signal_number;
  deadline_ = now + options_.grace;
  out.push_back(SignalTree{signal_number});
}

void WorkerGroup::kill(TimePoint now, Actions& out) {
  phase_ = Phase::killing;
  deadline_ = now + kKillLimit;
  out.push_back(KillTree{});
}

}  // namespace ddp::launcher
