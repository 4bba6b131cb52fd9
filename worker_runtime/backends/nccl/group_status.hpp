// Whether a group is still of use, and what calls throw once it is not.
//
// A failure has two steps: from fail() on nothing more begins, and whoever looks finds the group failed (this is so
// before the communicator is aborted, so that nobody takes what an aborted collective left behind for a result); with
// the verdict, which says what all ranks know of it, waiting threads go on. The error of the verdict is thrown once;
// later calls throw AbortedError with the first reason.
//
// Threads: any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>

#include "worker_runtime/core/failure/failure.hpp"
#include "worker_runtime/core/failure/verdict.hpp"

namespace ddp::nccl_backend {

using core::Failure;
using core::Verdict;

class GroupStatus {
 public:
  // The first failure counts: false for a later one.
  bool fail(const Failure& failure);

  void set_verdict(Verdict verdict);

  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  bool has_verdict() const;
  std::optional<Failure> failure() const;
  std::chrono::steady_clock::time_point failed_at() const;

  // Waits for the verdict. Requires a failure.
  [[noreturn]] void throw_failure();
  std::exception_ptr error();  // what it throws
  void throw_if_failed() {
    if (has_failed()) throw_failure();
  }

 private:
  std::atomic<bool> has_failed_{false};
  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable judged_;
  std::optional<Failure> failure_;
  std::chrono::steady_clock::time_point failed_at_{};
  std::optional<Verdict> verdict_;
  bool is_told_ = false;
};

}  // namespace ddp::nccl_backend
