// A number as one element of a floating-point type, as it lies in memory.
//
// Pure.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "ddp/memory.hpp"

namespace ddp::tensor {

inline bool is_floating(DataType type) {
  switch (type) {
    case DataType::float32:
    case DataType::float64:
    case DataType::float16:
    case DataType::bfloat16:
    case DataType::float8_e4m3fn:
    case DataType::float8_e5m2: return true;
    default: return false;
  }
}

// The element that is the nearest to `value`, of two as near the even one, in the first size_of(type) bytes. Empty
// where it is not finite, and for a type that is not floating.
using Scalar = std::array<std::byte, 8>;
std::optional<Scalar> scalar_of(double value, DataType type);

}  // namespace ddp::tensor
