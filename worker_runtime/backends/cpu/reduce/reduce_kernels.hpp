// The loops of a reduction, compiled for each set of vector instructions that the library knows.
//
// All sets give the same bits: every element is formed by the same additions (and so on) in the same order, none is
// fused with a multiplication, conversions round to nearest even, and a NaN that comes out is the quiet one without
// payload.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

struct KernelArguments {
  const std::byte* const* sources = nullptr;
  std::size_t source_count = 0;
  std::byte* const* destinations = nullptr;
  std::size_t destination_count = 0;
  std::size_t ranks = 1;  // that an average divides by
};

// Every element of the slice.
using Kernel = void (*)(const KernelArguments& arguments, Slice slice);

// What elements are in the sources and in the destinations. Floating-point types of 16 and 8 bits are put together in
// float32 in any case.
enum class Route : std::uint8_t {
  float32,
  float64,
  int64,
  int32,
  uint8,
  float16,
  bfloat16,
  float16_to_float32,  // a sum that is not divided, and so on: a part of the way
  bfloat16_to_float32,
  float32_to_float16,
  float32_to_bfloat16,
  int8,
  float8_e4m3fn,
  float8_e5m2,
  float8_e4m3fn_to_float32,
  float8_e5m2_to_float32,
  float32_to_float8_e4m3fn,
  float32_to_float8_e5m2
};

constexpr std::size_t kRoutes = 18;
constexpr std::size_t kOps = 6;  // as ReduceOp counts them

struct Kernels {
  Kernel of[kRoutes][kOps];
};

extern const Kernels kBaselineKernels;  // SSE2 on x86-64, Advanced SIMD on aarch64
// The compiler has to know GCC's pragma for instructions that not every CPU has.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DDP_HAVE_AVX_KERNELS 1
extern const Kernels kAvx2Kernels;    // AVX2 and F16C
extern const Kernels kAvx512Kernels;  // AVX-512 F, BW, DQ, VL
#endif

}  // namespace ddp::cpu_backend
