// Compiled with -O3, which makes vector code of these loops.
#include "worker_runtime/tensor/arithmetic.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "worker_runtime/tensor/convert.hpp"

namespace ddp::tensor {
namespace {

constexpr std::size_t kLanes = 8;          // sums at a time
constexpr std::size_t kBlock = 16 * 1024;  // elements between two looks at the result

constexpr std::size_t kWidened = 2048;  // elements of 16 bits that are widened at a time

bool has_16_bits(const MemoryRange& values) { return size_of(values.type) == sizeof(std::uint16_t); }

// Calls `call` with numbers of 16 bits as a float*, their count, and where they lie, a block at a time.
template <class Call>
void as_widened(const MemoryRange& values, Call call) {
  std::array<float, kWidened> wide;
  auto* const halves = static_cast<std::uint16_t*>(values.data);
  for (std::size_t first = 0; first < values.count; first += kWidened) {
    const std::size_t count = std::min(kWidened, values.count - first);
    widen(halves + first, wide.data(), count, values.type);
    call(wide.data(), count, halves + first);
  }
}

// Calls `call` with the range as a T*, and its count. What it does to numbers of 16 bits is done in float32 and
// rounded.
template <class Call>
void change(const MemoryRange& values, Call call) {
  if (values.type == DataType::float64) return call(static_cast<double*>(values.data), values.count);
  if (!has_16_bits(values)) return call(static_cast<float*>(values.data), values.count);
  as_widened(values, [&](float* wide, std::size_t count, std::uint16_t* halves) {
    call(wide, count);
    narrow(wide, halves, count, values.type);
  });
}

template <class T>
double sum_of_squares_of(const T* numbers, std::size_t count) {
  std::array<double, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double number = numbers[i + lane];
      sums[lane] += number * number;
    }
  }
  for (; i < count; ++i) sums[0] += double{numbers[i]} * numbers[i];
  double sum = 0;
  for (const double each : sums) sum += each;
  return sum;
}

// Adding 0 times a number gives a NaN exactly if it is infinite or a NaN.
template <class T>
bool is_block_finite(const T* values, std::size_t count) {
  std::array<T, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += values[i + lane] * T{0};
  }
  for (; i < count; ++i) sums[0] += values[i] * T{0};
  T sum = 0;
  for (const T each : sums) sum += each;
  return sum == 0;
}

template <class T>
bool is_each_finite(const T* values, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kBlock) {
    if (!is_block_finite(values + i, std::min(kBlock, count - i))) return false;
  }
  return true;
}

// An exponent of ones only.
bool is_each_finite(const std::uint16_t* values, std::size_t count, std::uint16_t exponent) {
  for (std::size_t i = 0; i < count; i += kBlock) {
    bool is_any_bad = false;
    for (std::size_t k = i; k < std::min(i + kBlock, count); ++k) is_any_bad |= (values[k] & exponent) == exponent;
    if (is_any_bad) return false;
  }
  return true;
}

}  // namespace

void scale(const MemoryRange& values, double factor) {
  change(values, [factor](auto* numbers, std::size_t count) {
    const auto by = static_cast<std::remove_reference_t<decltype(*numbers)>>(factor);
    for (std::size_t i = 0; i < count; ++i) numbers[i] *= by;
  });
}

double sum_of_squares(const MemoryRange& values) {
  if (values.type == DataType::float64) return sum_of_squares_of(static_cast<double*>(values.data), values.count);
  if (!has_16_bits(values)) return sum_of_squares_of(static_cast<float*>(values.data), values.count);
  double sum = 0;
  as_widened(values, [&](const float* wide, std::size_t count, const std::uint16_t*) {
    sum += sum_of_squares_of(wide, count);
  });
  return sum;
}

double limit_of_clamp(double limit, DataType type) {
  if (size_of(type) != sizeof(std::uint16_t)) return limit;
  const double largest = type == DataType::float16 ? 65504 : 0x1.fep127;
  auto wide = static_cast<float>(std::min(limit, largest));
  std::uint16_t half = 0;
  narrow(&wide, &half, 1, type);
  widen(&half, &wide, 1, type);
  if (wide <= limit) return wide;
  --half;  // the next smaller one
  widen(&half, &wide, 1, type);
  return wide;
}

void clamp(const MemoryRange& values, double limit) {
  limit = limit_of_clamp(limit, values.type);
  change(values, [limit](auto* numbers, std::size_t count) {
    using Number = std::remove_reference_t<decltype(*numbers)>;
    const auto largest = static_cast<Number>(limit);
    for (std::size_t i = 0; i < count; ++i) {
      const Number number = numbers[i];
      numbers[i] = number > largest ? largest : number < -largest ? -largest : number;
    }
  });
}

bool is_finite(const MemoryRange& values) {
  switch (values.type) {
    case DataType::float64: return is_each_finite(static_cast<const double*>(values.data), values.count);
    case DataType::float16: return is_each_finite(static_cast<const std::uint16_t*>(values.data), values.count, 0x7c00);
    case DataType::bfloat16:
      return is_each_finite(static_cast<const std::uint16_t*>(values.data), values.count, 0x7f80);
    default: return is_each_finite(static_cast<const float*>(values.data), values.count);
  }
}

}  // namespace ddp::tensor
