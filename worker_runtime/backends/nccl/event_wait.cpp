#include "worker_runtime/backends/nccl/event_wait.hpp"

#include <sched.h>

namespace ddp::nccl_backend {

EventWaits& EventWaits::of_process() {
  static EventWaits* const waits = [] {
    auto* const made = new EventWaits;
    Watch::of_process().add(made);
    return made;
  }();
  return *waits;
}

bool EventWaits::wait(const Event& event, int device, std::optional<std::chrono::steady_clock::time_point> end) {
  {
    const DeviceGuard guard(device);
    const RelaxedCapture relaxed;
    const auto now = std::chrono::steady_clock::now();
    const auto spin_end = end ? std::min(*end, now + kSpin) : now + kSpin;
    do {
      if (event.has_come()) return true;
      ::sched_yield();
    } while (std::chrono::steady_clock::now() < spin_end);
  }
  Waiter waiter{event, device};
  std::unique_lock lock(mutex_);
  waiters_.push_back(&waiter);
  lock.unlock();
  Watch::of_process().wake();
  lock.lock();
  const auto is_over = [&] { return waiter.has_come || waiter.error; };
  if (end) {
    came_.wait_until(lock, *end, is_over);
  } else {
    came_.wait(lock, is_over);
  }
  waiters_.remove(&waiter);
  if (waiter.error) std::rethrow_exception(waiter.error);
  return waiter.has_come;
}

Look EventWaits::look(std::chrono::steady_clock::time_point now) {
  const std::lock_guard lock(mutex_);
  Look seen = Look::idle;
  for (Waiter* const waiter : waiters_) {
    if (waiter->has_come || waiter->error) continue;
    seen = std::max(seen, now - waiter->since < kHurry ? Look::awaited : Look::unchanged);
    try {
      const DeviceGuard guard(waiter->device);
      waiter->has_come = waiter->event.has_come();
    } catch (...) {
      waiter->error = std::current_exception();
    }
    if (waiter->has_come || waiter->error) seen = Look::progressed;
  }
  if (seen == Look::progressed) came_.notify_all();
  return seen;
}

}  // namespace ddp::nccl_backend
