#include "worker_runtime/core/failure/failure_listener.hpp"

#include <utility>

namespace ddp::core {

void FailureListener::set(Tell tell) {
  std::unique_lock lock(mutex_);
  told_.wait(lock, [this] { return !is_telling_; });
  listener_ = std::move(tell);
  if (!listener_ || !reason_) return;
  const Tell listener = std::exchange(listener_, nullptr);
  const std::string reason = *reason_;
  lock.unlock();
  listener(reason);
}

void FailureListener::tell(const std::string& reason) {
  std::unique_lock lock(mutex_);
  reason_ = reason;
  if (!listener_) return;
  const Tell listener = std::exchange(listener_, nullptr);
  is_telling_ = true;
  lock.unlock();
  listener(reason);
  lock.lock();
  is_telling_ = false;
  told_.notify_all();
}

}  // namespace ddp::core
