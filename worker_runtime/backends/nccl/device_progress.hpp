// Finds out what a group's device has started and what it has done, in the order of the calls, and tells UnderWay.
//
// Threads: any.
#pragma once

#include <memory>
#include <mutex>

#include "worker_runtime/backends/nccl/device_clock.hpp"
#include "worker_runtime/backends/nccl/group_state.hpp"

namespace ddp::nccl_backend {

class DeviceProgress {
 public:
  explicit DeviceProgress(GroupState& group) : group_(group) {}

  // Before anything is under way. Waits for what is on the group's stream.
  void start_clock();

  // Whether something has started or ended. Throws CudaError.
  bool look();

  // The last look, before the communicator is aborted: what ends after that is not done.
  void last_look();

 private:
  bool look_locked();

  GroupState& group_;
  std::mutex mutex_;  // guards the rest
  DeviceClock clock_;
  bool is_final_ = false;
};

}  // namespace ddp::nccl_backend
