// Arithmetic on gradients in host memory (tensor/arithmetic.hpp), and what becomes of their memory.
//
// Pure but for the memory given; any thread.
#pragma once

#include "ddp/memory.hpp"
#include "worker_runtime/tensor/arithmetic.hpp"

namespace ddp::gradient_engine {

using tensor::clamp;
using tensor::is_finite;
using tensor::scale;
using tensor::sum_of_squares;

// Of shared memory: gives whole pages back to the system, which are zero when they are read next, and writes zeros to
// the rest.
void release_to_system(const MemoryRange& memory);

}  // namespace ddp::gradient_engine
