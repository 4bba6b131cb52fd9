// Calls of NCCL that may never return, each in a thread of its own. The thread may outlive the caller.
#pragma once

#include <future>
#include <utility>

#include "base/quiet_thread.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"

namespace ddp::nccl_backend {

// Runs `call` with this device as the current one; in the caller's thread if no other can be started. The future is
// ready when the call has returned. If the device is gone, because the process ends, nothing is called. Memory that
// NCCL frees in the call does not spoil a capture of the program.
template <class Call>
std::shared_future<void> in_thread_of_its_own(int device, Call call) {
  return base::run_detached([device, call = std::move(call)] {
    try {
      const DeviceGuard guard(device);
      const RelaxedCapture relaxed;
      call();
    } catch (const Error&) {  // then there is nothing to call for
    }
  });
}

}  // namespace ddp::nccl_backend
