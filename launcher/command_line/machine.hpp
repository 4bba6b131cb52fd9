// The facts of this machine that a launch depends on. Opens no GPU library: devices are counted by the kernel's names.
#pragma once

#include "launcher/command_line/launch_config.hpp"

namespace ddp::launcher {

// GPUs: /dev/nvidia<N>, as many as CUDA_VISIBLE_DEVICES leaves. XPUs: render devices of Intel's. CPUs: the affinity
// mask.
Machine this_machine(const EnvironmentLookup& environment);

// How many devices CUDA_VISIBLE_DEVICES leaves of `present`; entries behind the first invalid one do not count.
// Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
int visible_gpu_count(int present, const std::optional<std::string>& cuda_visible_devices);

}  // namespace ddp::launcher
