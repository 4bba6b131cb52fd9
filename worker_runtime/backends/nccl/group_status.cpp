#include "worker_runtime/backends/nccl/group_status.hpp"

#include <utility>

namespace ddp::nccl_backend {

bool GroupStatus::fail(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (failure_) return false;
  failure_ = failure;
  failed_at_ = std::chrono::steady_clock::now();
  has_failed_.store(true, std::memory_order_release);
  return true;
}

void GroupStatus::set_verdict(Verdict verdict) {
  const std::lock_guard lock(mutex_);
  if (verdict_) return;
  verdict_ = std::move(verdict);
  judged_.notify_all();
}

bool GroupStatus::has_verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_.has_value();
}

std::optional<Failure> GroupStatus::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::chrono::steady_clock::time_point GroupStatus::failed_at() const {
  const std::lock_guard lock(mutex_);
  return failed_at_;
}

void GroupStatus::throw_failure() {
  std::unique_lock lock(mutex_);
  judged_.wait(lock, [this] { return verdict_.has_value(); });
  const Verdict verdict = *verdict_;
  if (std::exchange(is_told_, true)) throw_unusable(verdict);
  throw_verdict(verdict);
}

std::exception_ptr GroupStatus::error() {
  try {
    throw_failure();
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace ddp::nccl_backend
