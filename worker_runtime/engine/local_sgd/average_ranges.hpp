// The mean over a group of many ranges at once.
#pragma once

#include <exception>
#include <vector>

#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"
#include "worker_runtime/engine/works.hpp"

namespace ddp::gradient_engine {

inline bool can_be_averaged(DataType type) {
  return type == DataType::float32 || type == DataType::float64 || type == DataType::float16 ||
         type == DataType::bfloat16;
}

// Collective. Waits for it. Throws what it failed with.
inline void average(ProcessGroup& group, const std::vector<MemoryRange>& ranges, CollectiveOptions options) {
  const auto begin = [&](const MemoryRange& range) {
    return group.all_reduce_async(range, ReduceOp::average, options);
  };
  std::vector<Work> works;
  begin_each(group, ranges, begin, options, works);
  std::exception_ptr failure;
  for (Work& work : works) wait_for(work, failure);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace ddp::gradient_engine
