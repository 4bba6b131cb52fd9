// Compiled with -O3, so that the plain loops below become vector code.
#include "worker_runtime/cpu_backend/reduce.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kChunkBytes = 4096;  // of running sums: stays in the first-level cache beside one source

// The type in which a sum of T is formed: signed integers are added as unsigned ones, which wrap around.
template <class T>
struct SumOf {
  using Type = T;
};
template <>
struct SumOf<std::int64_t> {
  using Type = std::uint64_t;
};

template <class T>
void add(T* __restrict sums, const T* __restrict source, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sums[i] += source[i];
}

template <class T, class Sum>
void divide(Sum* sums, std::size_t count, T divisor) {
  for (std::size_t i = 0; i < count; ++i) sums[i] = static_cast<Sum>(static_cast<T>(sums[i]) / divisor);
}

template <class T>
void reduce_as(const Reduction& reduction, std::span<const std::byte* const> sources,
               std::span<std::byte* const> destinations, Slice slice) {
  using Sum = typename SumOf<T>::Type;
  constexpr std::size_t kChunk = kChunkBytes / sizeof(T);
  alignas(kCacheLineBytes) std::array<Sum, kChunk> sums;
  for (std::size_t at = slice.begin; at < slice.end; at += kChunk) {
    const std::size_t count = std::min(kChunk, slice.end - at);
    std::memcpy(sums.data(), sources[0] + at * sizeof(T), count * sizeof(T));
    for (const std::byte* source : sources.subspan(1)) {
      add(sums.data(), reinterpret_cast<const Sum*>(source) + at, count);
    }
    if (reduction.op == ReduceOp::average) divide(sums.data(), count, static_cast<T>(reduction.ranks));
    for (std::byte* destination : destinations) {
      std::memcpy(destination + at * sizeof(T), sums.data(), count * sizeof(T));
    }
  }
}

}  // namespace

Slice slice_of(std::size_t count, DataType type, int index, int parts) {
  const std::size_t line_elements = kCacheLineBytes / size_of(type);
  const std::size_t lines = count / line_elements + (count % line_elements != 0 ? 1 : 0);
  const auto part_count = static_cast<std::size_t>(parts);
  const auto border = [&](std::size_t part) {
    const std::size_t line = lines / part_count * part + std::min(part, lines % part_count);
    return std::min(count, line * line_elements);
  };
  const auto part = static_cast<std::size_t>(index);
  return {border(part), border(part + 1)};
}

void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, Slice slice) {
  switch (reduction.type) {
    case DataType::float32: return reduce_as<float>(reduction, sources, destinations, slice);
    case DataType::float64: return reduce_as<double>(reduction, sources, destinations, slice);
    case DataType::int64: return reduce_as<std::int64_t>(reduction, sources, destinations, slice);
  }
}

}  // namespace ddp::cpu_backend
