// Hears from NVIDIA's driver, by its library NVML, of faults of this host's GPUs (XIDs), on a thread of its own.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launcher/gpu_faults/gpu_faults.hpp"

namespace ddp::launcher {

class GpuWatch {
 public:
  // Begins at once; hears nothing where the library or the driver is missing. NVML is never waited for: loading it and
  // its answers can take seconds.
  explicit GpuWatch(const std::string& nvml = "libnvidia-ml.so.1");
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;

  // The last faults, at most 32, oldest first, with their times on the job's clock, on which it is `job_time` now.
  // Any thread.
  std::vector<GpuFault> faults(std::chrono::milliseconds job_time) const;

 private:
  struct Heard;
  std::shared_ptr<Heard> heard_;  // also the thread's
};

}  // namespace ddp::launcher
