// Lets one thread at a time into NCCL's calls on a communicator, and tells them when it is no more.
//
// A call may not come back before the other ranks make theirs: the first one of a kind connects them. An abort is what
// brings it back, and NCCL takes that from another thread meanwhile. Where nobody is so blocked, no call and no abort
// meet.
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

  // Waits until nobody is inside. Null: the communicator has been taken; else leave() follows.
  abi::Comm enter() {
    std::unique_lock lock(mutex_);
    left_.wait(lock, [this] { return !is_inside_; });
    is_inside_ = comm_ != nullptr;
    return comm_;
  }

  // The same, but null also where somebody is inside.
  abi::Comm enter_if_free() {
    const std::lock_guard lock(mutex_);
    if (is_inside_ || comm_ == nullptr) return nullptr;
    is_inside_ = true;
    return comm_;
  }

  // False where the communicator has been taken meanwhile: what the call said is that of an abort.
  bool leave() {
    const std::lock_guard lock(mutex_);
    is_inside_ = false;
    left_.notify_all();
    return comm_ != nullptr;
  }

  // For its last call: nobody gets it any more. Waits for who is inside, for as long as calls take that are not
  // blocked. Null where it has been taken before.
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
  // A launch takes microseconds; a loaded machine may keep its thread from running for a while.
  static constexpr std::chrono::milliseconds kLongestUnblockedCall{100};

  mutable std::mutex mutex_;
  std::condition_variable left_;
  abi::Comm comm_;  // guarded by mutex_, as is the next
  bool is_inside_ = false;
};

}  // namespace ddp::nccl_backend
