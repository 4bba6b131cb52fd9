#include "worker_runtime/tensor/scalar.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace ddp::tensor {

namespace {

// A type of 16 or 8 bits; its sign is the highest one.
struct Format {
  int mantissa_bits = 0;
  int bias = 0;                       // of the exponent
  std::uint16_t code_of_largest = 0;  // of the finite ones, as bits
};

// Codes are in the order of the numbers, so a mantissa that is rounded up to the next exponent needs no care.
std::optional<std::uint16_t> code_of(double magnitude, const Format& format) {
  if (magnitude == 0) return std::uint16_t{0};
  if (!(magnitude < 0x1p+129)) return std::nullopt;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int lowest = 1 - format.bias;  // of the normal numbers
  const int above_lowest = std::max(exponent - 1 - lowest, 0);
  const double last_bits = std::ldexp(magnitude, format.mantissa_bits - lowest - above_lowest);
  const std::int64_t code =
      (std::int64_t{above_lowest} << format.mantissa_bits) + static_cast<std::int64_t>(std::nearbyint(last_bits));
  if (code > format.code_of_largest) return std::nullopt;
  return static_cast<std::uint16_t>(code);
}

template <class T>
Scalar in_memory(T value) {
  Scalar scalar{};
  std::memcpy(scalar.data(), &value, sizeof value);
  return scalar;
}

template <class Bits>
std::optional<Scalar> rounded(double value, const Format& format) {
  const auto code = code_of(std::abs(value), format);
  if (!code) return std::nullopt;
  const int sign = std::signbit(value) ? 1 << (8 * sizeof(Bits) - 1) : 0;
  return in_memory(static_cast<Bits>(*code | sign));
}

}  // namespace

std::optional<Scalar> scalar_of(double value, DataType type) {
  if (!std::isfinite(value)) return std::nullopt;
  switch (type) {
    case DataType::float64: return in_memory(value);
    case DataType::float32: {
      const auto as_float = static_cast<float>(value);
      return std::isfinite(as_float) ? std::optional(in_memory(as_float)) : std::nullopt;
    }
    case DataType::float16: return rounded<std::uint16_t>(value, {10, 15, 0x7bff});
    case DataType::bfloat16: return rounded<std::uint16_t>(value, {7, 127, 0x7f7f});
    case DataType::float8_e4m3fn: return rounded<std::uint8_t>(value, {3, 7, 0x7e});
    case DataType::float8_e5m2: return rounded<std::uint8_t>(value, {2, 15, 0x7b});
    default: return std::nullopt;
  }
}

}  // namespace ddp::tensor
