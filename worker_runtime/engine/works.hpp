// Many collectives at once: begun as few calls, and waited for together.
//
// Threads: as the group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <vector>

#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"

namespace ddp::gradient_engine {

// Begins a collective on each of the values, up to 1024 as one call, and appends the works of these calls.
inline void begin_each(ProcessGroup& group, const std::vector<MemoryRange>& values,
                       const std::function<Work(const MemoryRange&)>& begin, CollectiveOptions options,
                       std::vector<Work>& works) {
  constexpr std::size_t kCallsAtOnce = 1024;
  for (std::size_t first = 0; first < values.size(); first += kCallsAtOnce) {
    const std::size_t end = std::min(values.size(), first + kCallsAtOnce);
    works.push_back(group.coalesce(
        [&] {
          for (std::size_t i = first; i < end; ++i) static_cast<void>(begin(values[i]));
        },
        options));
  }
}

// Waits. What it fails with becomes `failure`, unless there is one.
inline void wait_for(Work& work, std::exception_ptr& failure) {
  try {
    work.wait();
  } catch (...) {
    if (!failure) failure = std::current_exception();
  }
}

}  // namespace ddp::gradient_engine
