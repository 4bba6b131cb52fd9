#include "launcher/worker_group/worker_group.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

// A second signal kills at once; one that comes this soon after the first is the same wish (`timeout` sends two).
constexpr auto kSameWish = 200ms;

// Time for SIGKILL to take effect; what is left after it sits in the kernel and obeys nobody.
constexpr auto kKillLimit = 30s;

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
  if (stop_signal_ != 0) return end_round(false, out);  // told to stop meanwhile: nothing begins any more
  phase_ = Phase::running;
  running_count_ = options_.workers;
  round_began_ = now;
  stopped_ = 0;
  out.push_back(SpawnWorkers{});
}

void WorkerGroup::take(const WorkerEnded& event, TimePoint now, Actions& out) {
  if (phase_ == Phase::idle) return;
  --running_count_;
  const bool by_itself = phase_ == Phase::running || (first_failed_at_ && phase_ == Phase::stopping);
  if (!event.ending.is_success() && by_itself) {
    const bool first = phase_ == Phase::running;
    failures_.push_back(
        {event.local_rank, event.ending, now, std::chrono::duration_cast<std::chrono::milliseconds>(now - round_began_)});
    if (!first) return void(--stopped_);
    first_failed_at_ = now;
    out.push_back(TellFailure{failures_.back()});
    out.push_back(KillOrphans{});  // the cause's own children have lost their parent: nothing to wait for
    begin_stop(SIGTERM, now, out);
  } else if (phase_ == Phase::running && running_count_ == 0) {
    begin_stop(SIGTERM, now, out);  // only descendants can be left; TreeEmpty follows at once where there are none
  } else if (phase_ == Phase::stopping && running_count_ == 0 && tree_signal_ != SIGTERM) {
    tree_signal_ = SIGTERM;  // children that a shell put in the background ignore SIGINT
    out.push_back(SignalTree{SIGTERM});
  }
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
  if (phase_ == Phase::running) begin_stop(event.signal_number, now, out);
}

void WorkerGroup::take(const StopWorkers& event, TimePoint now, Actions& out) {
  if (phase_ == Phase::running) begin_stop(event.signal_number, now, out);
  if (event.kill && phase_ == Phase::stopping) kill(now, out);
}

WorkerGroup::Actions WorkerGroup::tick(TimePoint now) {
  Actions out;
  if (!deadline_ || now < *deadline_) return out;
  if (phase_ == Phase::killing)
    end_round(true, out);
  else
    kill(now, out);
  return out;
}

void WorkerGroup::begin_stop(int signal_number, TimePoint now, Actions& out) {
  phase_ = Phase::stopping;
  stopped_ = running_count_;
  tree_signal_ = signal_number;
  deadline_ = now + options_.grace;
  out.push_back(SignalTree{signal_number});
}

void WorkerGroup::kill(TimePoint now, Actions& out) {
  phase_ = Phase::killing;
  deadline_ = now + kKillLimit;
  out.push_back(KillTree{});
}

void WorkerGroup::end_round(bool tree_survived, Actions& out) {
  phase_ = Phase::idle;
  deadline_.reset();
  out.push_back(TellEnded{std::exchange(failures_, {}), stopped_, tree_survived});
}

}  // namespace ddp::launcher
