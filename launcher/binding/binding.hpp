// Decides which cores and which memory each worker of this node gets.
//
// Pure. Meaning of the modes: torchrun's, docs/binding.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/binding/binding_options.hpp"
#include "launcher/binding/topology.hpp"

namespace ddp::launcher {

// What one worker may run on. The lists ascend.
struct Binding {
  std::vector<int> cpus;
  std::vector<int> cores;         // that these belong to; empty where nobody asked
  std::vector<int> memory_nodes;  // whose memory is preferred; empty: no wish
  std::optional<int> core_share;  // cores, divided by the workers that have the very same; empty for a worker that runs
                                  // wherever ddprun may
  std::optional<int> gpu;         // index among Topology::gpus
  std::string gpu_address;
};

// One for each worker, by local rank. `visible_devices` is CUDA_VISIBLE_DEVICES, whose entry of the local rank is the
// worker's GPU. Throws UsageError where a worker would get nothing. Requires a mode, and a CPU.
std::vector<Binding> bind_workers(const Topology& topology, BindingOptions::Mode mode, int workers,
                                  const std::optional<std::string>& visible_devices);

// "cores 4-7 (cpus 8-15), NUMA node 1, GPU 3 (0000:65:00.0)"
std::string describe(const Binding& binding);

// As the command line says it: "core-complex".
std::string mode_name(BindingOptions::Mode mode);

}  // namespace ddp::launcher
