// Whether a group is still of use, and what its calls throw once it is not. The first reason counts.
//
// A failure has two steps. From fail() on nothing more begins, and whoever looks finds the group failed. With the
// verdict, which says what all ranks know of it, waiting threads go on. Between the two a backend ends what is under
// way, so that nobody takes what an aborted operation left behind for a result. A backend whose ranks know enough at
// once takes both steps by give_up().
//
// Threads: any. has_failed() is one load, for every call to ask.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>

#include "worker_runtime/core/failure/failure.hpp"
#include "worker_runtime/core/failure/verdict.hpp"

namespace ddp::core {

class GroupStatus {
 public:
  // The first step. The first failure counts: false for a later one.
  bool fail(const Failure& failure);

  // The second step. The first verdict counts.
  void set_verdict(Verdict verdict);

  // Both steps. False, and no change, if the group has failed already.
  bool give_up(Verdict verdict);

  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  bool has_verdict() const;
  std::optional<Failure> failure() const;  // of fail()
  std::chrono::steady_clock::time_point failed_at() const;

  // These wait for the verdict. They require that the group has failed.
  //
  // throw_failure(): the error of the verdict once, and later that the group is of no further use, with the first
  // reason. error() returns what it throws. throw_unusable(): always the latter.
  [[noreturn]] void throw_failure();
  std::exception_ptr error();
  [[noreturn]] void throw_unusable() const;

  void throw_if_failed() {
    if (has_failed()) throw_failure();
  }

 private:
  Verdict wait_for_verdict(std::unique_lock<std::mutex>& lock) const;

  std::atomic<bool> has_failed_{false};  // set with mutex_ held
  mutable std::mutex mutex_;             // guards the rest
  mutable std::condition_variable judged_;
  std::optional<Failure> failure_;
  std::chrono::steady_clock::time_point failed_at_{};
  std::optional<Verdict> verdict_;
  bool is_told_ = false;
};

}  // namespace ddp::core
