// The arithmetic of elastic_worker.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace ddp::nccl_test {

// parameters[i] = 3 * parameters[i] + sums[i], but for the first, modulo 2^64. Both are in device memory; on the
// default stream.
cudaError_t update(std::int64_t* parameters, const std::int64_t* sums, std::size_t count);

}  // namespace ddp::nccl_test
