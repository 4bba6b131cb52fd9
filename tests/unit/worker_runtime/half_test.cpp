#include "worker_runtime/tensor/half.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>

namespace ddp::tensor {
namespace {

constexpr std::uint32_t kPatterns = 1u << 16;

struct Format {
  int exponent_bits;
  int mantissa_bits;
};

// What the bits mean, by the definition of the format; exact in a double.
double meaning(std::uint16_t bits, Format format) {
  const int exponent_max = (1 << format.exponent_bits) - 1;
  const int bias = exponent_max / 2;
  const int exponent = bits >> format.mantissa_bits & exponent_max;
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == exponent_max) {
    return sign * (mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN());
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - format.mantissa_bits);
  return sign * std::ldexp((1 << format.mantissa_bits) + mantissa, exponent - bias - format.mantissa_bits);
}

struct OfFloat16 {
  using Type = Float16;
  static constexpr Format kFormat{5, 10};
  static Float16 from(float value) { return to_float16(value); }
};

struct OfBfloat16 {
  using Type = Bfloat16;
  static constexpr Format kFormat{8, 7};
  static Bfloat16 from(float value) { return to_bfloat16(value); }
};

// The largest finite number, and where infinity would lie if its exponent were one as any other.
constexpr std::uint16_t infinity_of(Format format) {
  return static_cast<std::uint16_t>(((1 << format.exponent_bits) - 1) << format.mantissa_bits);
}

double upper_neighbour(std::uint16_t bits, Format format) {
  if (bits + 1 < infinity_of(format)) return meaning(static_cast<std::uint16_t>(bits + 1), format);
  return std::ldexp(1.0, 1 << (format.exponent_bits - 1));
}

template <class Of>
class Half : public ::testing::Test {};
using Formats = ::testing::Types<OfFloat16, OfBfloat16>;
TYPED_TEST_SUITE(Half, Formats);

TYPED_TEST(Half, EveryPatternMeansWhatTheFormatSaysAndComesBack) {
  using Type = typename TypeParam::Type;
  for (std::uint32_t pattern = 0; pattern < kPatterns; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const float value = to_float(Type{bits});
    const double want = meaning(bits, TypeParam::kFormat);
    const std::uint16_t back = TypeParam::from(value).bits;
    if (std::isnan(want)) {
      const auto quiet = static_cast<std::uint16_t>(1 << (TypeParam::kFormat.mantissa_bits - 1));
      ASSERT_TRUE(std::isnan(value)) << pattern;
      ASSERT_EQ(back, bits | quiet) << pattern;
    } else {
      ASSERT_EQ(static_cast<double>(value), want) << pattern;
      ASSERT_EQ(std::signbit(value), std::signbit(want)) << pattern;
      ASSERT_EQ(back, bits) << pattern;
    }
  }
}

// Between every two neighbours: the middle goes to the even one, what is a bit nearer to one goes there.
TYPED_TEST(Half, RoundsToTheNearestAndFromTheMiddleToTheEven) {
  const Format format = TypeParam::kFormat;
  for (std::uint16_t bits = 0; bits < infinity_of(format); ++bits) {
    const double below = meaning(bits, format);
    const double middle_exact = (below + upper_neighbour(bits, format)) / 2;
    const auto middle = static_cast<float>(middle_exact);
    ASSERT_EQ(static_cast<double>(middle), middle_exact);
    const auto above = static_cast<std::uint16_t>(bits + 1);  // infinity above the largest
    for (const std::uint16_t sign : {std::uint16_t{0}, std::uint16_t{0x8000}}) {
      const auto rounded = [&](float value) { return TypeParam::from(sign ? -value : value).bits ^ sign; };
      ASSERT_EQ(rounded(middle), bits % 2 == 0 ? bits : above) << bits;
      ASSERT_EQ(rounded(std::nextafter(middle, 0.0f)), bits) << bits;
      ASSERT_EQ(rounded(std::nextafter(middle, std::numeric_limits<float>::infinity())), above) << bits;
      ASSERT_EQ(rounded(std::nextafter(static_cast<float>(below), std::numeric_limits<float>::infinity())), bits)
          << bits;
    }
  }
}

TYPED_TEST(Half, WhatIsTooLargeBecomesInfinityAndWhatIsTooSmallZero) {
  const Format format = TypeParam::kFormat;
  const std::uint16_t infinity = infinity_of(format);
  EXPECT_EQ(TypeParam::from(std::numeric_limits<float>::max()).bits, infinity);
  EXPECT_EQ(TypeParam::from(std::numeric_limits<float>::infinity()).bits, infinity);
  EXPECT_EQ(TypeParam::from(-std::numeric_limits<float>::infinity()).bits, infinity | 0x8000);
  EXPECT_EQ(TypeParam::from(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(TypeParam::from(-std::numeric_limits<float>::denorm_min()).bits, 0x8000);
  EXPECT_EQ(TypeParam::from(-0.0f).bits, 0x8000);
}

TYPED_TEST(Half, NoNaNBecomesInfinity) {
  for (const std::uint32_t payload : {1u, 0x1fffu, 0x2000u, 0x3fffffu, 0x400000u, 0x7fffffu}) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const auto nan = std::bit_cast<float>(sign | 0x7f800000u | payload);
      EXPECT_TRUE(std::isnan(to_float(TypeParam::from(nan)))) << payload;
    }
  }
}

TYPED_TEST(Half, EveryFloatGoesToItsNearest) {
  std::mt19937_64 random(20261122);
  for (int trial = 0; trial < 1'000'000; ++trial) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    const std::uint16_t bits = TypeParam::from(value).bits & 0x7fff;
    const double magnitude = std::fabs(static_cast<double>(value));
    const double have = bits == infinity_of(TypeParam::kFormat)
                            ? std::ldexp(1.0, 1 << (TypeParam::kFormat.exponent_bits - 1))
                            : meaning(bits, TypeParam::kFormat);
    const double off = std::fabs(have - magnitude);
    if (bits > 0) {
      ASSERT_LE(off, std::fabs(meaning(static_cast<std::uint16_t>(bits - 1), TypeParam::kFormat) - magnitude)) << value;
    }
    if (bits < infinity_of(TypeParam::kFormat)) {
      ASSERT_LE(off, std::fabs(upper_neighbour(bits, TypeParam::kFormat) - magnitude)) << value;
    }
  }
}

}  // namespace
}  // namespace ddp::tensor
