// The two floating-point types of 16 bits, as bits, and what they are as a float.
//
// Written without a branch, so that a loop over them becomes vector code on any CPU. The floats that float16 goes
// through are normal or zero, so flushing of subnormals, which a program may have switched on, changes nothing.
//
// Pure; any thread. float16: IEEE 754 binary16. bfloat16: the upper half of a binary32.
#pragma once

#include <bit>
#include <cstdint>

namespace ddp::tensor {

struct Float16 {
  std::uint16_t bits = 0;
};

struct Bfloat16 {
  std::uint16_t bits = 0;
};

// The value where the condition holds, else 0. A ?: would do, but the compiler makes branches of those around floats.
inline std::uint32_t where(bool condition, std::uint32_t value) { return value & (0u - std::uint32_t{condition}); }

inline float to_float(Bfloat16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

inline float to_float(Float16 value) {
  constexpr std::uint32_t kExponent = 0x7c00u << 13;  // all ones: infinity or NaN
  constexpr std::uint32_t kRebias = (127u - 15u) << 23;
  constexpr std::uint32_t kSmallest = (127u - 14u) << 23;  // 2^-14, the smallest normal number
  const std::uint32_t shifted = (value.bits & 0x7fffu) << 13;
  const std::uint32_t exponent = shifted & kExponent;
  const std::uint32_t normal = shifted + kRebias;
  const std::uint32_t special = normal + kRebias;  // the exponent all ones again
  // A subnormal's bits behind the exponent of 2^-14 are that much more than 2^-14.
  const auto subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(shifted + kSmallest) - std::bit_cast<float>(kSmallest));
  const bool is_special = exponent == kExponent;
  const bool is_subnormal = exponent == 0;
  const std::uint32_t magnitude =
      where(is_special, special) | where(is_subnormal, subnormal) | where(!is_special & !is_subnormal, normal);
  return std::bit_cast<float>(magnitude | (value.bits & 0x8000u) << 16);
}

// To the nearest, of two as near the even one; beyond the largest to infinity. A NaN stays one, and is a quiet one.
inline Bfloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const std::uint32_t nan = bits >> 16 | 0x40u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<std::uint16_t>(where(is_nan, nan) | where(!is_nan, rounded))};
}

inline Float16 to_float16(float value) {
  constexpr std::uint32_t kInfinity = 255u << 23;
  constexpr std::uint32_t kTooLarge = (127u + 16u) << 23;  // 2^16; what is between it and the largest rounds by itself
  constexpr std::uint32_t kSmallest = (127u - 14u) << 23;  // 2^-14, the smallest normal number
  constexpr std::uint32_t kHalf = 126u << 23;              // 0.5, whose last bit stands for 2^-24: that of subnormals
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kHalf)) - kHalf;
  const std::uint32_t special = 0x7c00u | where(magnitude > kInfinity, 0x0200u | (magnitude >> 13 & 0x3ffu));
  const bool is_special = magnitude >= kTooLarge;
  const bool is_subnormal = magnitude < kSmallest;
  const std::uint32_t result =
      where(is_special, special) | where(is_subnormal, subnormal) | where(!is_special & !is_subnormal, normal);
  return {static_cast<std::uint16_t>(result | sign)};
}

}  // namespace ddp::tensor
