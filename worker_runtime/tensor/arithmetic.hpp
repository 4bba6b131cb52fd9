// Arithmetic on ranges of host memory: float32, float64, float16 or bfloat16.
//
// Pure but for the memory given; any thread.
#pragma once

#include "ddp/memory.hpp"

namespace ddp::tensor {

// Multiplies every element, in its own type; those of 16 bits in float32, rounded to nearest even.
void scale(const MemoryRange& values, double factor);

// In double.
double sum_of_squares(const MemoryRange& values);

// Brings every element into [-limit, limit]; a NaN stays one. limit: > 0.
void clamp(const MemoryRange& values, double limit);

// The limit that clamp() takes for a type: of 16 bits the largest finite number that is not above `limit`.
double limit_of_clamp(double limit, DataType type);

// Whether no element is infinite or NaN.
bool is_finite(const MemoryRange& values);

}  // namespace ddp::tensor
