// Arithmetic on gradients in host memory.
//
// Pure but for the memory given; any thread.
#pragma once

#include "ddp/memory.hpp"

namespace ddp::gradient_engine {

// Multiplies every element, in its own type. values: float32 or float64.
void scale(const MemoryRange& values, double factor);

}  // namespace ddp::gradient_engine
