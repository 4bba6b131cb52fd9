// The floating-point types of 8 bits and a boolean, as bits, and what they are as plain values: by the definition of
// the formats, with a search for the nearest number.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "ddp/memory.hpp"

namespace ddp::testing {

struct Float8E4m3fn {
  static constexpr int kMantissaBits = 3, kBias = 7;
  static constexpr int kCodeOfLargest = 0x7e;  // the next one is NaN
  std::uint8_t bits = 0;
};

struct Float8E5m2 {
  static constexpr int kMantissaBits = 2, kBias = 15;
  static constexpr int kCodeOfLargest = 0x7b;  // the next one is infinity
  std::uint8_t bits = 0;
};

struct Boolean {
  std::uint8_t bits = 0;
};

// What a code without a sign would mean if all exponents were as any other.
template <class T>
double meaning_of(int code) {
  const int exponent = code >> T::kMantissaBits;
  const int mantissa = code & ((1 << T::kMantissaBits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - T::kBias - T::kMantissaBits);
  return std::ldexp((1 << T::kMantissaBits) + mantissa, exponent - T::kBias - T::kMantissaBits);
}

template <class T>
float meaning(std::uint8_t bits) {
  const int code = bits & 0x7f;
  float magnitude = static_cast<float>(meaning_of<T>(code));
  if (code > T::kCodeOfLargest) {
    const bool is_infinity = code == 0x7c;  // float8_e5m2's
    magnitude = is_infinity ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

// Tests decode and encode many millions of values, so both look into tables that are made of the definitions.
template <class T>
float decoded(T value) {
  static const std::vector<float> meanings = [] {
    std::vector<float> all;
    for (int bits = 0; bits < 256; ++bits) all.push_back(meaning<T>(static_cast<std::uint8_t>(bits)));
    return all;
  }();
  return meanings[value.bits];
}

// To the nearest, of two as near the even code. There is one NaN.
template <class T>
std::uint8_t nearest_code(float value) {
  static const std::vector<double> meanings = [] {
    std::vector<double> all;
    for (int code = 0; code <= T::kCodeOfLargest + 1; ++code) all.push_back(meaning_of<T>(code));
    return all;
  }();
  if (std::isnan(value)) return 0x7f;
  const double magnitude = std::fabs(static_cast<double>(value));
  const auto above = std::lower_bound(meanings.begin(), meanings.end() - 1, magnitude) - meanings.begin();
  auto code = static_cast<std::size_t>(above);
  if (code > 0) {
    const double to_above = meanings[code] - magnitude;
    const double to_below = magnitude - meanings[code - 1];
    if (to_below < to_above || (to_below == to_above && code % 2 == 1)) --code;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(value) && code != 0x7f ? 0x80u : 0u));
}

// By the upper 16 bits of the value, where all values with these have one code; else by the definition.
template <class T>
T encoded(float value) {
  static const std::vector<std::pair<std::uint8_t, bool>> codes = [] {
    std::vector<std::pair<std::uint8_t, bool>> all;
    for (std::uint32_t upper = 0; upper < 1u << 16; ++upper) {
      const auto first = nearest_code<T>(std::bit_cast<float>(upper << 16));
      all.emplace_back(first, first == nearest_code<T>(std::bit_cast<float>(upper << 16 | 0xffff)));
    }
    return all;
  }();
  const auto& [code, is_of_all] = codes[std::bit_cast<std::uint32_t>(value) >> 16];
  return {is_of_all ? code : nearest_code<T>(value)};
}

}  // namespace ddp::testing

namespace ddp {

template <>
struct DataTypeOf<testing::Float8E4m3fn> {
  static constexpr DataType value = DataType::float8_e4m3fn;
};
template <>
struct DataTypeOf<testing::Float8E5m2> {
  static constexpr DataType value = DataType::float8_e5m2;
};
template <>
struct DataTypeOf<testing::Boolean> {
  static constexpr DataType value = DataType::boolean;
};

}  // namespace ddp
