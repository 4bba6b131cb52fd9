// Puts together what the ranks of a host have in memory that this process sees.
//
// Every element is formed in the order of `sources`, and, for an average, divided by the number of ranks: so the result
// depends neither on how a range is cut into slices nor on who computes it.
//
//   integers           in their own type: sums and products wrap around, averages round towards zero
//   float32, float64   in their own type
//   float16, bfloat16  in float32; rounded once, at the end, to nearest even; beyond the largest to infinity
//   float8_e5m2        the same
//   float8_e4m3fn      the same, but beyond the largest to NaN, as it has no infinity
//   boolean            a sum is the maximum of the bytes, a product their minimum; no average
//   min, max           NaN where any element is NaN; of two equal zeros the first, whatever its sign
//   NaN                whichever went in or came about, the one that comes out is quiet, positive and without payload
//                      (float8: 0x7f, as PyTorch's)
//
// The vector instructions of the machine are used, and make no difference to any bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"

namespace ddp::cpu_backend {

constexpr std::size_t kCacheLineBytes = 64;

constexpr std::size_t in_whole_lines(std::size_t bytes) {
  return (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
}

// Elements [begin, end) of a range.
struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Part `index` of `count` elements cut into `parts`, as even as whole cache lines allow; empty for some where there are
// fewer lines than parts.
Slice slice_of(std::size_t count, DataType type, int index, int parts);

// What elements of `type` are while they are put together: float32 for floating-point types of 16 and 8 bits, else the
// type itself.
DataType accumulator_of(DataType type);

// Which part of the way from all ranks' elements to the result: all of it; or from the elements of some ranks to an
// accumulator; or from such accumulators to the result. The way in two steps rounds where float32 and float64 do.
enum class Stage : std::uint8_t { whole, partial, total };

// What is done, and the number of ranks whose elements an average divides by.
struct Reduction {
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::size_t ranks = 1;
  Stage stage = Stage::whole;
};

// destinations[d][i] becomes the sum (or what else `op` says) of sources[s][i] over s, for every i in the slice. All
// are aligned to their type, which is that of accumulators for the sources of a total and the destinations of a partial
// one. But for a partial one, a destination may begin where a source does, or before it; apart from that no two
// overlap.
void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, Slice slice);

// Vector instructions that a reduction can be made of.
enum class Instructions : std::uint8_t { baseline, avx2, avx512 };

// Whether this machine, and the way the library was built, have them.
bool has(Instructions instructions);

// reduce() with instructions that the machine has: reduce() takes the last of them.
void reduce_with(Instructions instructions, const Reduction& reduction, std::span<const std::byte* const> sources,
                 std::span<std::byte* const> destinations, Slice slice);

}  // namespace ddp::cpu_backend
