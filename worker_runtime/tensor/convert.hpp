// From float32 to the floating-point types of 16 bits and back, for whole ranges of host memory.
//
// Pure but for the memory given; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ddp/memory.hpp"

namespace ddp::tensor {

// type: float16 or bfloat16; to nearest even. from and to: `count` elements that don't overlap.
void narrow(const float* from, std::uint16_t* to, std::size_t count, DataType type);
void widen(const std::uint16_t* from, float* to, std::size_t count, DataType type);

}  // namespace ddp::tensor
