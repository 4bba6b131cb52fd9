// DeviceArithmetic over CUDA, by the kernels of gradient_kernels.hpp.
//
// Nothing makes the host wait but the HostCopy of a norm, which waits for an event and throws what the group failed
// with, as CudaMemory does.
//
// Threads: one caller at a time for each object.
#pragma once

#include <memory>

#include "worker_runtime/process_group/device_arithmetic.hpp"

namespace ddp::nccl_backend {

// memory: of that device; it copies norms to the host.
std::shared_ptr<process_group::DeviceArithmetic> make_cuda_arithmetic(
    int device, std::shared_ptr<process_group::DeviceMemory> memory);

}  // namespace ddp::nccl_backend
