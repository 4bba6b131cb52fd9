// Hears from NVIDIA's driver, by its library NVML, of faults of this host's GPUs (XIDs), on a thread of its own.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <vector>

#include "launcher/gpu_faults/gpu_faults.hpp"

namespace ddp::launcher {

class GpuWatch {
 public:
  // Begins after a second of the loop, so that a short job neither loads NVML nor pays for a thread; hears nothing
  // where NVML or the driver is missing. NVML is not waited for, except by the destructor while NVML is being made
  // ready, which may take seconds: a process must not end in the middle of that.
  explicit GpuWatch(boost::asio::io_context& io);
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;

  // The last faults, at most 32, oldest first, with their times on the job's clock, on which it is `job_time` now.
  // Any thread.
  std::vector<GpuFault> faults(std::chrono::milliseconds job_time) const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // with the thread
  boost::asio::steady_timer start_;
};

}  // namespace ddp::launcher
