// Reads this machine's topology: cores, caches and memory by hwloc, which is loaded for this alone.
//
// The part that ddprun may use: its affinity mask, which lies within the cgroup's cpuset, and the cpuset's memory.
#pragma once

#include <string>
#include <vector>

#include "launcher/binding/topology.hpp"

namespace ddp::launcher {

// The affinity mask of this process.
std::vector<int> usable_cpus();

struct HwlocOptions {
  std::string library = "libhwloc.so.15";
  std::string synthetic;  // a description in hwloc's terms to go by, in place of this machine; tests have such
};

// Without the GPUs. Throws UsageError where hwloc is missing or knows none of `cpus`.
Topology read_topology(const std::vector<int>& cpus, const HwlocOptions& options = {});

}  // namespace ddp::launcher
