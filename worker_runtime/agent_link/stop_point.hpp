// At which call of should_stop() the ranks stop: the part of the agreement that each rank has.
//
// Every rank calls ask() once for each step, so the n-th call is the same step on all of them. When the job is to stop,
// each rank says which call of its own is the next that it can still answer with yes (prepare()); the greatest of these
// is the step for all (decide()). Nobody waits for a rank that works: prepare() answers at once, from another thread;
// only a rank that reaches its promised call before the decision is there waits for it, which takes messages and no
// collective.
//
// Threads: ask() from the one that trains, the others from that which hears the agent.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace ddp::agent_link {

class StopPoint {
 public:
  // Whether this call, or one before it, is the agreed one. Waits for a decision no longer than `limit`; without one
  // the rank goes on, as the stop has come to nothing.
  bool ask(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    const auto call = ++calls_;
    const auto round = round_;
    if (promised_ && call >= *promised_ &&
        !decided_.wait_for(lock, limit, [&] { return step_ || !promised_ || round_ != round; }))
      promised_.reset();  // a decision that comes now is too late
    return step_ && round_ == round && call >= *step_;
  }

  // The next call that can still be the agreed one; none beyond it is answered before decide(). Asked again, it says
  // the same.
  std::uint64_t prepare() {
    const std::lock_guard lock(mutex_);
    if (!promised_) promised_ = calls_ + 1;
    return *promised_;
  }

  void decide(std::uint64_t step) {
    const std::lock_guard lock(mutex_);
    if (!promised_) return;
    step_ = std::max(step, *promised_);  // an earlier one has been answered already
    decided_.notify_all();
  }

  // There will be no decision, unless there is one already.
  void give_up() {
    const std::lock_guard lock(mutex_);
    if (!step_) promised_.reset();
    decided_.notify_all();
  }

  // A new round begins: calls count from 1 again, and nothing is agreed.
  void begin_round() {
    const std::lock_guard lock(mutex_);
    calls_ = 0;
    ++round_;
    promised_.reset();
    step_.reset();
    decided_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable decided_;
  std::uint64_t calls_ = 0, round_ = 0;
  std::optional<std::uint64_t> promised_, step_;
};

}  // namespace ddp::agent_link
