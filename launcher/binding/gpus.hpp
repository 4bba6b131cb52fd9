// Finds NVIDIA's GPUs and the NUMA node of each: by the driver's library NVML, which is loaded for this alone, else by
// what the kernel shows.
#pragma once

#include <string>
#include <vector>

#include "base/nvml.hpp"
#include "launcher/binding/topology.hpp"

namespace ddp::launcher {

struct GpuSources {
  std::string nvml = base::kNvmlName;
  std::string root;  // before /proc and /sys; a test has its own
};

// By ascending PCI address; none where there is no driver. A GPU that does not answer keeps its place, without facts.
std::vector<Gpu> find_gpus(const GpuSources& sources = {});

}  // namespace ddp::launcher
