// The mean over a group of many ranges at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"

namespace ddp::gradient_engine {

inline bool can_be_averaged(DataType type) {
  return type == DataType::float32 || type == DataType::float64 || type == DataType::float16 ||
         type == DataType::bfloat16;
}

// Collective. Waits for it. Throws what it failed with.
inline void average(ProcessGroup& group, const std::vector<MemoryRange>& ranges, CollectiveOptions options) {
  constexpr std::size_t kCallsAtOnce = 1024;
  for (std::size_t first = 0; first < ranges.size(); first += kCallsAtOnce) {
    const std::size_t end = std::min(ranges.size(), first + kCallsAtOnce);
    Work work = group.coalesce(
        [&] {
          for (std::size_t i = first; i < end; ++i) {
            static_cast<void>(group.all_reduce_async(ranges[i], ReduceOp::average, options));
          }
        },
        options);
    work.wait();
  }
}

}  // namespace ddp::gradient_engine
