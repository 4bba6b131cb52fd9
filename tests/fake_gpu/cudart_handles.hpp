// Streams by the handles that CUDA's callers hold.
//
// Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "tests/fake_gpu/streams.hpp"

namespace ddp::fake_gpu {

// Null for a handle that is none, any more, or that the fake does not have (cudaStreamPerThread).
std::shared_ptr<Stream> stream_of(cudaStream_t handle);

// All handles of streams and events are none from now on.
void forget_handles();

}  // namespace ddp::fake_gpu
