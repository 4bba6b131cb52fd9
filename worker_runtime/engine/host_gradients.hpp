// Arithmetic on gradients in host memory: float32 or float64.
//
// Pure but for the memory given; any thread.
#pragma once

#include "ddp/memory.hpp"

namespace ddp::gradient_engine {

// Multiplies every element, in its own type.
void scale(const MemoryRange& values, double factor);

// In double.
double sum_of_squares(const MemoryRange& values);

// Brings every element into [-limit, limit]; a NaN stays one.
void clamp(const MemoryRange& values, double limit);

// Whether no element is infinite or NaN.
bool is_finite(const MemoryRange& values);

}  // namespace ddp::gradient_engine
