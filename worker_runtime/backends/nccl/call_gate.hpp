// Lets one thread at a time call NCCL on a communicator, and no thread after the communicator was taken for its last
// call.
//
// A call can block until the other ranks make theirs, because the first call of a kind connects the ranks. An abort
// ends such a call, and NCCL accepts it from another thread. An abort waits for calls that are not blocked.
//
// Threads: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "worker_runtime/backends/nccl/nccl_abi.hpp"

namespace ddp::nccl_backend {

class CallGate {
 public:
  explicit CallGate(abi::Comm comm) : comm_(comm) {}

  // Waits until no thread is inside. Returns null if the communicator was taken; else the caller calls leave() later.
  abi::Comm enter() {
    std::unique_lock lock(mutex_);
    left_.wait(lock, [this] { return !is_inside_; });
    is_inside_ = comm_ != nullptr;
    return comm_;
  }

  // The same, but returns null if a thread is inside.
  abi::Comm enter_if_free() {
    const std::lock_guard lock(mutex_);
    if (is_inside_ || comm_ == nullptr) return nullptr;
    is_inside_ = true;
    return comm_;
  }

  // Returns false if the communicator was taken meanwhile: then the call was aborted, whatever it returned.
  bool leave() {
    const std::lock_guard lock(mutex_);
    is_inside_ = false;
    left_.notify_all();
    return comm_ != nullptr;
  }

  // Takes the communicator for its last call. Waits for a thread that is inside, but no longer than a call takes that
  // is not blocked. Returns null if it was taken before.
  abi::Comm take() {
    std::unique_lock lock(mutex_);
    left_.wait_for(lock, kLongestUnblockedCall, [this] { return !is_inside_; });
    return std::exchange(comm_, nullptr);
  }

  bool is_taken() const {
    const std::lock_guard lock(mutex_);
    return comm_ == nullptr;
  }

 private:
  // A launch takes microseconds, but on a loaded machine its thread may not run for a while.
  static constexpr std::chrono::milliseconds kLongestUnblockedCall{100};

  mutable std::mutex mutex_;
  std::condition_variable left_;
  abi::Comm comm_;  // guarded by mutex_, as is the next
  bool is_inside_ = false;
};

}  // namespace ddp::nccl_backend
