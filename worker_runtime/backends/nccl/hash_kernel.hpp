// The hash of memory on a GPU, as a function that puts its kernel on a stream and returns at once. It checks nothing,
// and returns what the launch returns.
//
// C++17, for nvcc. Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker_runtime/backends/nccl/gradient_kernels.hpp"

namespace ddp::nccl_backend::kernels {

// Adds tensor::hash_by_blocks() of each range to hashes[its place in the batch], which is on the device. Ranges are of
// bytes, at any address, and may be empty.
cudaError_t add_hashes(const Batch& batch, std::uint64_t* hashes, cudaStream_t stream);

}  // namespace ddp::nccl_backend::kernels
