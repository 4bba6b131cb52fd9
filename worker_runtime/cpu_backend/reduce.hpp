// Adds up what the ranks of a host have in memory that this process sees.
//
// Every element is summed in the order of `sources`, in its own type, and, for an average, divided by the number of
// ranks: so the result depends neither on how a range is cut into slices nor on who computes it. Sums of int64 wrap
// around.
#pragma once

#include <cstddef>
#include <span>

#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"

namespace ddp::cpu_backend {

constexpr std::size_t kCacheLineBytes = 64;

// Elements [begin, end) of a range.
struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Part `index` of `count` elements cut into `parts`, as even as whole cache lines allow; empty for some where there are
// fewer lines than parts.
Slice slice_of(std::size_t count, DataType type, int index, int parts);

// What is summed, and the number of ranks whose elements an average divides by.
struct Reduction {
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::size_t ranks = 1;
};

// destinations[d][i] becomes the sum (or average) of sources[s][i] over s, for every i in the slice. A destination may
// be a source; apart from that no two overlap. All are aligned to their type.
void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, Slice slice);

}  // namespace ddp::cpu_backend
