#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

#include <algorithm>

#include "worker_runtime/backends/cpu/reduce/reduce_kernels.hpp"

namespace ddp::cpu_backend {

namespace {

static_assert(static_cast<std::size_t>(ReduceOp::sum) == 0 && static_cast<std::size_t>(ReduceOp::average) == 1 &&
              static_cast<std::size_t>(ReduceOp::product) == 2 && static_cast<std::size_t>(ReduceOp::min) == 3 &&
              static_cast<std::size_t>(ReduceOp::max) == 4 &&
              static_cast<std::size_t>(ReduceOp::premul_sum) == kOps - 1);

const Kernels& kernels_of([[maybe_unused]] Instructions instructions) {
#if DDP_HAVE_AVX_KERNELS
  if (instructions == Instructions::avx512) return kAvx512Kernels;
  if (instructions == Instructions::avx2) return kAvx2Kernels;
#endif
  return kBaselineKernels;
}

Route route_of(DataType type, Stage stage) {
  switch (type) {
    case DataType::float32: return Route::float32;
    case DataType::float64: return Route::float64;
    case DataType::int64: return Route::int64;
    case DataType::int32: return Route::int32;
    case DataType::uint8:
    case DataType::boolean: return Route::uint8;
    case DataType::int8: return Route::int8;
    case DataType::float16:
      return stage == Stage::whole     ? Route::float16
             : stage == Stage::partial ? Route::float16_to_float32
                                       : Route::float32_to_float16;
    case DataType::bfloat16:
      return stage == Stage::whole     ? Route::bfloat16
             : stage == Stage::partial ? Route::bfloat16_to_float32
                                       : Route::float32_to_bfloat16;
    case DataType::float8_e4m3fn:
      return stage == Stage::whole     ? Route::float8_e4m3fn
             : stage == Stage::partial ? Route::float8_e4m3fn_to_float32
                                       : Route::float32_to_float8_e4m3fn;
    case DataType::float8_e5m2:
      return stage == Stage::whole     ? Route::float8_e5m2
             : stage == Stage::partial ? Route::float8_e5m2_to_float32
                                       : Route::float32_to_float8_e5m2;
  }
  return Route::float32;
}

// Of booleans a sum is a maximum, and a product a minimum.
ReduceOp as_of_bytes(ReduceOp op) {
  if (op == ReduceOp::sum) return ReduceOp::max;
  return op == ReduceOp::product ? ReduceOp::min : op;
}

// Inlined, so that a slice stays in registers: small messages come through here too.
[[gnu::always_inline]] inline void reduce_by(const Kernels& kernels, const Reduction& reduction,
                                             std::span<const std::byte* const> sources,
                                             std::span<std::byte* const> destinations, Slice slice) {
  if (slice.begin >= slice.end) return;
  const bool divides = reduction.op == ReduceOp::average && reduction.stage != Stage::partial;
  ReduceOp op = reduction.op == ReduceOp::average && !divides ? ReduceOp::sum : reduction.op;
  if (reduction.type == DataType::boolean) [[unlikely]]
    op = as_of_bytes(op);
  const auto route = static_cast<std::size_t>(route_of(reduction.type, reduction.stage));
  const KernelArguments arguments{.sources = sources.data(),
                                  .source_count = sources.size(),
                                  .destinations = destinations.data(),
                                  .destination_count = destinations.size(),
                                  .ranks = reduction.ranks};
  kernels.of[route][static_cast<std::size_t>(op)](arguments, slice);
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
  switch (type) {
    case DataType::float16:
    case DataType::bfloat16:
    case DataType::float8_e4m3fn:
    case DataType::float8_e5m2: return DataType::float32;
    default: return type;
  }
}

bool has(Instructions instructions) {
  switch (instructions) {
    case Instructions::baseline: return true;
#if DDP_HAVE_AVX_KERNELS
    case Instructions::avx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    case Instructions::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    default: return false;
  }
}

void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, Slice slice) {
  static const Kernels& kernels = kernels_of(has(Instructions::avx512) ? Instructions::avx512
                                             : has(Instructions::avx2) ? Instructions::avx2
                                                                       : Instructions::baseline);
  reduce_by(kernels, reduction, sources, destinations, slice);
}

void reduce_with(Instructions instructions, const Reduction& reduction, std::span<const std::byte* const> sources,
                 std::span<std::byte* const> destinations, Slice slice) {
  reduce_by(kernels_of(instructions), reduction, sources, destinations, slice);
}

}  // namespace ddp::cpu_backend
