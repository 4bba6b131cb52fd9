// Compiled with -O3, which makes vector code of these loops.
#include "worker_runtime/engine/host_gradients.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ddp::gradient_engine {
namespace {

constexpr std::size_t kLanes = 8;          // sums at a time
constexpr std::size_t kBlock = 16 * 1024;  // elements between two looks at the result

// Calls `call` with the range as a T*, and its count.
template <class Call>
auto as_numbers(const MemoryRange& values, Call call) {
  if (values.type == DataType::float64) return call(static_cast<double*>(values.data), values.count);
  return call(static_cast<float*>(values.data), values.count);
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

}  // namespace

void scale(const MemoryRange& values, double factor) {
  as_numbers(values, [factor](auto* numbers, std::size_t count) {
    const auto by = static_cast<std::remove_reference_t<decltype(*numbers)>>(factor);
    for (std::size_t i = 0; i < count; ++i) numbers[i] *= by;
  });
}

double sum_of_squares(const MemoryRange& values) {
  return as_numbers(values, [](const auto* numbers, std::size_t count) {
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
  });
}

void clamp(const MemoryRange& values, double limit) {
  as_numbers(values, [limit](auto* numbers, std::size_t count) {
    using Number = std::remove_reference_t<decltype(*numbers)>;
    const auto largest = static_cast<Number>(limit);
    for (std::size_t i = 0; i < count; ++i) {
      const Number number = numbers[i];
      numbers[i] = number > largest ? largest : number < -largest ? -largest : number;
    }
  });
}

void release_to_system(const MemoryRange& memory) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data), end = begin + memory.bytes();
  const std::uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
  if (first >= last || ::madvise(reinterpret_cast<void*>(first), last - first, MADV_REMOVE) != 0) {
    std::memset(memory.data, 0, memory.bytes());
    return;
  }
  std::memset(memory.data, 0, first - begin);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
}

bool is_finite(const MemoryRange& values) {
  return as_numbers(values, [](const auto* numbers, std::size_t count) {
    for (std::size_t i = 0; i < count; i += kBlock) {
      if (!is_block_finite(numbers + i, std::min(kBlock, count - i))) return false;
    }
    return true;
  });
}

}  // namespace ddp::gradient_engine
