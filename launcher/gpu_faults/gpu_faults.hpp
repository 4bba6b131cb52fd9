// What a GPU's driver reported around the time at which a worker failed.
//
// Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace ddp::launcher {

// An XID: the driver's number for what went wrong. Source: NVIDIA, "XID Errors".
struct GpuFault {
  unsigned gpu = 0;  // as nvidia-smi numbers it
  std::uint64_t xid = 0;
  std::chrono::milliseconds job_time{0};  // on the job's clock
};

// "GPU 3 reported XID 79 (the GPU has fallen off the bus) 0.4 s before; ...": the faults in the round of the failure,
// which began at `round_began`, and from a minute before the failure on; each kind of a GPU's once. Empty if there is
// none.
std::string describe_faults(const std::vector<GpuFault>& faults, std::chrono::milliseconds failed_at,
                            std::chrono::milliseconds round_began);

}  // namespace ddp::launcher
