#include "worker_runtime/nccl_backend/event_wait.hpp"

namespace ddp::nccl_backend {

EventWaits& EventWaits::of_process() {
  static EventWaits* const waits = [] {
    auto* const made = new EventWaits;
    Watch::of_process().add(made);
    return made;
  }();
  return *waits;
}

void EventWaits::wait(const Event& event, int device) {
  {
    const DeviceGuard guard(device);
    if (event.has_come()) return;
  }
  Waiter waiter{event, device};
  std::unique_lock lock(mutex_);
  waiters_.push_back(&waiter);
  lock.unlock();
  Watch::of_process().wake();
  lock.lock();
  came_.wait(lock, [&] { return waiter.has_come || waiter.error; });
  waiters_.remove(&waiter);
  if (waiter.error) std::rethrow_exception(waiter.error);
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
