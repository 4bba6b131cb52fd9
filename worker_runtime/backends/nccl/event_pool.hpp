// Events of operations, kept for the next ones: to make and destroy an event costs more than to record it.
//
// Threads: any. Fork: a forked child keeps what it has, and asks CUDA for nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fork_guard.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"

namespace ddp::nccl_backend {

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  // With Timing::on, of the device that is current, which is the same for all. It says what it said when it was last
  // recorded, until it is recorded anew. It comes back here when its last handle goes.
  std::shared_ptr<Event> take();

 private:
  static constexpr std::size_t kSpareMax = 1024;  // those of the buckets of a large model

  void give_back(std::unique_ptr<Event> event);

  base::ForkGuard fork_guard_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Event>> spare_;  // guarded by mutex_
};

}  // namespace ddp::nccl_backend
