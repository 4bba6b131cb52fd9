// Arithmetic on gradients in host memory: float32, float64, float16 or bfloat16. And what becomes of their memory.
//
// Pure but for the memory given; any thread.
#pragma once

#include "ddp/memory.hpp"

namespace ddp::gradient_engine {

// Multiplies every element, in its own type; those of 16 bits in float32, rounded to nearest even.
void scale(const MemoryRange& values, double factor);

// In double.
double sum_of_squares(const MemoryRange& values);

// Brings every element into [-limit, limit]; a NaN stays one. limit: > 0.
void clamp(const MemoryRange& values, double limit);

// Of shared memory: gives whole pages back to the system, which are zero when they are read next, and writes zeros to
// the rest.
void release_to_system(const MemoryRange& memory);

// Whether no element is infinite or NaN.
bool is_finite(const MemoryRange& values);

}  // namespace ddp::gradient_engine
