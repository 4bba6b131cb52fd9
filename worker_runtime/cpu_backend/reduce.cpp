// Compiled with -O3, so that the plain loops below become vector code.
#include "worker_runtime/cpu_backend/reduce.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "worker_runtime/tensor/half.hpp"

namespace ddp::cpu_backend {

namespace {

using tensor::Bfloat16;
using tensor::Float16;

constexpr std::size_t kChunkBytes = 4096;  // of accumulators: stays in the first-level cache beside one source

struct Sum {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a + b);
  }
};

struct Product {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a * b);
  }
};

// Without a branch, so that a loop over it becomes vector code.
template <class T>
bool is_nan([[maybe_unused]] T value) {
  if constexpr (std::is_floating_point_v<T>) return value != value;
  return false;
}

struct Min {
  template <class T>
  static T of(T a, T b) {
    return (b < a) | is_nan(b) ? b : a;
  }
};

struct Max {
  template <class T>
  static T of(T a, T b) {
    return (b > a) | is_nan(b) ? b : a;
  }
};

// The type in which elements of T are put together: signed integers are added and multiplied as unsigned ones, which
// wrap around.
template <class T, class Op>
struct AccumulatorOf {
  static constexpr bool kWraps = std::is_integral_v<T> && (std::is_same_v<Op, Sum> || std::is_same_v<Op, Product>);
  using Type = typename std::conditional_t<kWraps, std::make_unsigned<T>, std::type_identity<T>>::type;
};
template <class Op>
struct AccumulatorOf<Float16, Op> {
  using Type = float;
};
template <class Op>
struct AccumulatorOf<Bfloat16, Op> {
  using Type = float;
};

template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same_v<From, Float16> || std::is_same_v<From, Bfloat16>) {
    return tensor::to_float(value);
  } else if constexpr (std::is_same_v<To, Float16>) {
    return tensor::to_float16(value);
  } else if constexpr (std::is_same_v<To, Bfloat16>) {
    return tensor::to_bfloat16(value);
  } else {
    return static_cast<To>(value);
  }
}

template <class Op, class Accumulator, class In>
void put_together(Accumulator* __restrict sums, const In* __restrict source, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sums[i] = Op::of(sums[i], converted<Accumulator>(source[i]));
}

template <class To, class From>
void convert(To* __restrict to, const From* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = converted<To>(from[i]);
}

// T is what is averaged, which says how integers divide; a divisor may be beyond what a small one holds.
template <class T, class Accumulator>
void divide(Accumulator* sums, std::size_t count, std::size_t ranks) {
  using Divisor = std::conditional_t<(sizeof(T) < sizeof(std::int32_t)) && std::is_integral_v<T>, std::int32_t,
                                     std::conditional_t<std::is_integral_v<T>, T, Accumulator>>;
  const auto divisor = static_cast<Divisor>(ranks);
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<T>) {
      sums[i] = static_cast<Accumulator>(static_cast<T>(sums[i]) / divisor);
    } else {
      sums[i] /= divisor;
    }
  }
}

template <class Out, class Accumulator, std::size_t kChunk>
void store(const std::array<Accumulator, kChunk>& sums, std::size_t count, std::span<std::byte* const> destinations,
           std::size_t at) {
  const auto store_bytes = [&](const void* results) {
    for (std::byte* destination : destinations) {
      std::memcpy(destination + at * sizeof(Out), results, count * sizeof(Out));
    }
  };
  if constexpr (sizeof(Out) == sizeof(Accumulator)) {  // the same, but for the sign of an integer
    store_bytes(sums.data());
  } else {
    alignas(kCacheLineBytes) std::array<Out, kChunk> results;
    convert(results.data(), sums.data(), count);
    store_bytes(results.data());
  }
}

// T names what is reduced; In is what the sources hold and Out what the destinations get: T, or its accumulator.
template <class T, class Op, class In, class Out>
void reduce_chunks(const Reduction& reduction, std::span<const std::byte* const> sources,
                   std::span<std::byte* const> destinations, Slice slice) {
  using Accumulator = typename AccumulatorOf<T, Op>::Type;
  constexpr std::size_t kChunk = kChunkBytes / sizeof(Accumulator);
  const bool divides = reduction.op == ReduceOp::average && reduction.stage != Stage::partial;
  alignas(kCacheLineBytes) std::array<Accumulator, kChunk> sums;
  for (std::size_t at = slice.begin; at < slice.end; at += kChunk) {
    const std::size_t count = std::min(kChunk, slice.end - at);
    convert(sums.data(), reinterpret_cast<const In*>(sources[0]) + at, count);
    for (const std::byte* source : sources.subspan(1)) {
      put_together<Op>(sums.data(), reinterpret_cast<const In*>(source) + at, count);
    }
    if (divides) divide<T>(sums.data(), count, reduction.ranks);
    store<Out>(sums, count, destinations, at);
  }
}

template <class T, class Op>
void reduce_with(const Reduction& reduction, std::span<const std::byte* const> sources,
                 std::span<std::byte* const> destinations, Slice slice) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>) {
    switch (reduction.stage) {
      case Stage::whole: return reduce_chunks<T, Op, T, T>(reduction, sources, destinations, slice);
      case Stage::partial: return reduce_chunks<T, Op, T, float>(reduction, sources, destinations, slice);
      case Stage::total: return reduce_chunks<T, Op, float, T>(reduction, sources, destinations, slice);
    }
  } else {
    reduce_chunks<T, Op, T, T>(reduction, sources, destinations, slice);
  }
}

template <class T>
void reduce_as(const Reduction& reduction, std::span<const std::byte* const> sources,
               std::span<std::byte* const> destinations, Slice slice) {
  switch (reduction.op) {
    case ReduceOp::sum:
    case ReduceOp::average: return reduce_with<T, Sum>(reduction, sources, destinations, slice);
    case ReduceOp::product: return reduce_with<T, Product>(reduction, sources, destinations, slice);
    case ReduceOp::min: return reduce_with<T, Min>(reduction, sources, destinations, slice);
    case ReduceOp::max: return reduce_with<T, Max>(reduction, sources, destinations, slice);
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

DataType accumulator_of(DataType type) {
  return type == DataType::float16 || type == DataType::bfloat16 ? DataType::float32 : type;
}

void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, Slice slice) {
  switch (reduction.type) {
    case DataType::float32: return reduce_as<float>(reduction, sources, destinations, slice);
    case DataType::float64: return reduce_as<double>(reduction, sources, destinations, slice);
    case DataType::int64: return reduce_as<std::int64_t>(reduction, sources, destinations, slice);
    case DataType::float16: return reduce_as<Float16>(reduction, sources, destinations, slice);
    case DataType::bfloat16: return reduce_as<Bfloat16>(reduction, sources, destinations, slice);
    case DataType::int32: return reduce_as<std::int32_t>(reduction, sources, destinations, slice);
    case DataType::uint8: return reduce_as<std::uint8_t>(reduction, sources, destinations, slice);
  }
}

}  // namespace ddp::cpu_backend
