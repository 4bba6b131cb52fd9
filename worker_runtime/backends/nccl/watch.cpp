#include "worker_runtime/backends/nccl/watch.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/quiet_thread.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"

namespace ddp::nccl_backend {

void WatchPeriod::take(Look look) {
  if (look == Look::unchanged) {
    period_ = std::min(2 * period_, kMax);
  } else {
    reset();
  }
}

Watch& Watch::of_process() {
  static Watch* const watch = new Watch;
  return *watch;
}

void Watch::add(Watched* watched) {
  const std::lock_guard lock(mutex_);
  if (!has_started_) {
    base::start_quiet_thread([this] { run(); }).detach();
    has_started_ = true;
  }
  watched_.push_back(watched);
}

void Watch::remove(Watched* watched) {
  std::unique_lock lock(mutex_);
  std::erase(watched_, watched);
  changed_.wait(lock, [&] { return looked_at_ != watched; });
}

void Watch::wake() {
  const std::lock_guard lock(mutex_);
  is_woken_ = true;
  if (sleeps_long_) changed_.notify_all();
}

void Watch::run() {
  const RelaxedCapture relaxed;
  WatchPeriod period;
  std::unique_lock lock(mutex_);
  for (;;) {
    is_woken_ = false;
    const Look look = look_at_all(lock);
    period.take(look);
    sleeps_long_ = look == Look::idle || period.get() > WatchPeriod::kMin;
    const auto is_woken = [this] { return is_woken_ && sleeps_long_; };
    if (look == Look::idle) {
      changed_.wait(lock, is_woken);
      period.reset();
    } else if (changed_.wait_for(lock, period.get(), is_woken)) {
      period.reset();
    }
  }
}

// With the lock held, but not during a look.
Look Watch::look_at_all(std::unique_lock<std::mutex>& lock) {
  Look seen = Look::idle;
  const std::vector<Watched*> all = watched_;
  for (Watched* const watched : all) {
    if (std::find(watched_.begin(), watched_.end(), watched) == watched_.end()) continue;  // removed meanwhile
    looked_at_ = watched;
    lock.unlock();
    const Look look = watched->look(std::chrono::steady_clock::now());
    lock.lock();
    looked_at_ = nullptr;
    changed_.notify_all();
    seen = std::max(seen, look);
  }
  return seen;
}

}  // namespace ddp::nccl_backend
