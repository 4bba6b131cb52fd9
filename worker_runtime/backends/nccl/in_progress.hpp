// Waits for what a communicator that does not block has begun.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/cut.hpp"
#include "worker_runtime/backends/nccl/nccl_abi.hpp"
#include "worker_runtime/backends/nccl/nccl_library.hpp"

namespace ddp::nccl_backend {

// NCCL has nothing to wait on: yields while it may be a matter of microseconds, then sleeps longer and longer.
class Pauses {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Throws AbortedError if it is cut; null: nothing cuts it.
  void pause(TimePoint end = TimePoint::max(), const base::Cut* cut = nullptr) {
    const auto now = std::chrono::steady_clock::now();
    if (now - began_ < kYieldTime) {
      ::sched_yield();
      return;
    }
    base::sleep_until(std::min<TimePoint>(now + sleep_, std::max(now, end)), cut);
    sleep_ = std::min(2 * sleep_, kSleepMax);
  }

 private:
  static constexpr std::chrono::microseconds kYieldTime{1'000};  // a launch on a connected communicator takes less
  static constexpr std::chrono::microseconds kSleepMin{1'000};
  static constexpr std::chrono::microseconds kSleepMax{4'000};

  TimePoint began_ = std::chrono::steady_clock::now();
  std::chrono::microseconds sleep_ = kSleepMin;
};

// What NCCL found on the communicator, or why it can't tell.
inline abi::Result state_of(const NcclLibrary& nccl, abi::Comm comm) {
  abi::Result state = abi::Result::success;
  const abi::Result asked = nccl->comm_get_async_error(comm, &state);
  return asked != abi::Result::success ? asked : state;
}

}  // namespace ddp::nccl_backend
