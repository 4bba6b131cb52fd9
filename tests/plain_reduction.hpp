// What has to come out of a reduction, element by element, as plainly as it can be said: what the collectives' own code
// is checked against.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"
#include "tests/plain_float8.hpp"
#include "worker_runtime/tensor/half.hpp"

namespace ddp {

template <>
struct DataTypeOf<tensor::Float16> {
  static constexpr DataType value = DataType::float16;
};
template <>
struct DataTypeOf<tensor::Bfloat16> {
  static constexpr DataType value = DataType::bfloat16;
};

namespace testing {

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, tensor::Float16> || std::is_same_v<T, tensor::Bfloat16>;

template <class T>
constexpr bool kIsFloat8 = std::is_same_v<T, Float8E4m3fn> || std::is_same_v<T, Float8E5m2>;

template <class T>
constexpr bool kIsBoolean = std::is_same_v<T, Boolean>;

// What elements of T are put together in.
template <class T>
using Wide = std::conditional_t<kIsHalf<T> || kIsFloat8<T>, float, std::conditional_t<kIsBoolean<T>, bool, T>>;

// How large the values of a floating-point type may be so that most sums are finite, but not all.
template <class T>
constexpr double kLargeValue = kIsFloat8<T> ? 300
                               : kIsHalf<T> ? 2e4
                                            : 1e6;

template <class T>
Wide<T> widened(T value) {
  if constexpr (kIsHalf<T>) {
    return tensor::to_float(value);
  } else if constexpr (kIsFloat8<T>) {
    return decoded(value);
  } else if constexpr (kIsBoolean<T>) {
    return value.bits != 0;
  } else {
    return value;
  }
}

template <class T>
T narrowed(Wide<T> value) {
  if constexpr (std::is_same_v<T, tensor::Float16>) {
    return tensor::to_float16(value);
  } else if constexpr (std::is_same_v<T, tensor::Bfloat16>) {
    return tensor::to_bfloat16(value);
  } else if constexpr (kIsFloat8<T>) {
    return encoded<T>(value);
  } else if constexpr (kIsBoolean<T>) {
    return {static_cast<std::uint8_t>(value)};
  } else {
    return value;
  }
}

template <class W>
bool is_nan(W value) {
  if constexpr (std::is_floating_point_v<W>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

template <class W>
W combined(ReduceOp op, W a, W b) {
  const bool is_product = op == ReduceOp::product;
  if (op == ReduceOp::min || op == ReduceOp::max) {
    if (is_nan(a) || is_nan(b)) return is_nan(b) ? b : a;
    const bool takes_b = op == ReduceOp::min ? b < a : b > a;
    return takes_b ? b : a;
  }
  if constexpr (std::is_integral_v<W>) {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    return static_cast<W>(is_product ? x * y : x + y);
  } else {
    return is_product ? a * b : a + b;
  }
}

// In its own type, which the factor is rounded to; of floating-point types.
template <class T>
T multiplied(T value, double factor) {
  if constexpr (std::is_integral_v<Wide<T>>) {
    return value;
  } else {
    return narrowed<T>(widened(value) * widened(narrowed<T>(static_cast<Wide<T>>(factor))));
  }
}

// The end of an average over so many ranks.
template <class W>
W divided(ReduceOp op, W sum, std::size_t ranks) {
  if (op != ReduceOp::average) return sum;
  if constexpr (std::is_integral_v<W>) {
    return static_cast<W>(static_cast<std::int64_t>(sum) / static_cast<std::int64_t>(ranks));
  } else {
    return sum / static_cast<W>(ranks);
  }
}

}  // namespace testing

}  // namespace ddp
