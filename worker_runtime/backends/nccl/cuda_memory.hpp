// What the library does with memory of a GPU beside the collectives: DeviceMemory over CUDA.
//
// Nothing makes the host wait but copy_to_host(), copy_from_host() and HostCopy::bytes(), which wait for events
// (event_wait.hpp), and wait_for_all(), which sits in cudaDeviceSynchronize. What a failed collective left behind is
// never taken for a result: a copy to the host throws what the group failed with.
//
// Threads: one caller at a time for each object.
#pragma once

#include <memory>

#include "worker_runtime/core/operation/group_status.hpp"
#include "worker_runtime/process_group/device_memory.hpp"

namespace ddp::nccl_backend {

using core::GroupStatus;

// status: of the group whose results it reads; null for none.
std::shared_ptr<process_group::DeviceMemory> make_cuda_memory(int device, std::shared_ptr<GroupStatus> status);

}  // namespace ddp::nccl_backend
