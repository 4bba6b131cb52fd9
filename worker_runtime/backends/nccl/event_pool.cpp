#include "worker_runtime/backends/nccl/event_pool.hpp"

#include <utility>

namespace ddp::nccl_backend {

std::shared_ptr<Event> EventPool::take() {
  std::unique_ptr<Event> event;
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      event = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (!event) event = std::make_unique<Event>(Event::Timing::on);
  return {event.release(), [pool = shared_from_this()](Event* used) { pool->give_back(std::unique_ptr<Event>(used)); }};
}

void EventPool::give_back(std::unique_ptr<Event> event) {
  if (fork_guard_.in_forked_child()) return static_cast<void>(event.release());  // another thread may have had the lock
  const std::lock_guard lock(mutex_);
  if (spare_.size() < kSpareMax) spare_.push_back(std::move(event));
}

}  // namespace ddp::nccl_backend
