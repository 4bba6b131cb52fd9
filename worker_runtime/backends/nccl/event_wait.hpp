// Lets a thread of the host wait for an event of a device: it asks for the event for a moment, then sleeps, and the
// watching thread wakes it. A barrier or a small copy so takes microseconds, and not the watching thread's period.
//
// Never cudaEventSynchronize or cudaStreamSynchronize: who is inside one of them can't be got out.
//
// Threads: any.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <optional>

#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/backends/nccl/watch.hpp"

namespace ddp::nccl_backend {

class EventWaits : public Watched {
 public:
  // The one of this process; never destroyed.
  static EventWaits& of_process();

  // Returns once what is ahead of the event's record is done. What holds that up ends by itself: collectives by their
  // deadlines. Throws CudaError.
  void wait(const Event& event, int device) { static_cast<void>(wait(event, device, std::nullopt)); }

  // The same; false where that has not come by `end`.
  bool wait_until(const Event& event, int device, std::chrono::steady_clock::time_point end) {
    return wait(event, device, end);
  }

  Look look(std::chrono::steady_clock::time_point now) override;

 private:
  bool wait(const Event& event, int device, std::optional<std::chrono::steady_clock::time_point> end);

  struct Waiter {
    const Event& event;
    int device;
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
    bool has_come = false;
    std::exception_ptr error{};
  };

  static constexpr std::chrono::microseconds kSpin{200};

  // In which a wait is looked after as often as can be: a step of a training that the host has run ahead of is shorter,
  // and the device must not run out of work because the host heard late.
  static constexpr std::chrono::milliseconds kHurry{100};

  std::mutex mutex_;
  std::condition_variable came_;
  std::list<Waiter*> waiters_;  // guarded by mutex_, as what they point to
};

}  // namespace ddp::nccl_backend
