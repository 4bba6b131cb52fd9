#include "worker_runtime/core/operation/group_status.hpp"

#include <utility>

namespace ddp::core {

bool GroupStatus::fail(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (has_failed()) return false;
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

bool GroupStatus::give_up(Verdict verdict) {
  const std::lock_guard lock(mutex_);
  if (has_failed()) return false;
  verdict_ = std::move(verdict);
  failed_at_ = std::chrono::steady_clock::now();
  has_failed_.store(true, std::memory_order_release);
  return true;
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

Verdict GroupStatus::wait_for_verdict(std::unique_lock<std::mutex>& lock) const {
  judged_.wait(lock, [this] { return verdict_.has_value(); });
  return *verdict_;
}

void GroupStatus::throw_failure() {
  std::unique_lock lock(mutex_);
  const Verdict verdict = wait_for_verdict(lock);
  if (std::exchange(is_told_, true)) core::throw_unusable(verdict);
  throw_verdict(verdict);
}

void GroupStatus::throw_unusable() const {
  std::unique_lock lock(mutex_);
  core::throw_unusable(wait_for_verdict(lock));
}

std::exception_ptr GroupStatus::error() {
  try {
    throw_failure();
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace ddp::core
