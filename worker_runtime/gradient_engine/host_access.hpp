// The few places where the gradient engine itself touches memory of the group's device: everything else hands ranges to
// the group. On a CPU they are plain loads and stores; another device brings its own form of these functions.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"

namespace ddp::gradient_engine {

// Whether the functions below reach this device's memory.
bool is_supported(Device device);

void write_zeros(MemoryRange range);

// One element at `index` of a float32 or float64 range: 0 or 1 when written, raised when not 0.
void write_flag(MemoryRange range, std::size_t index, bool raised);
bool read_flag(ConstMemoryRange range, std::size_t index);

// Collective: the words of every rank, rank after rank. Every rank gives equally many.
std::vector<std::int64_t> all_gather_words(ProcessGroup& group, const std::vector<std::int64_t>& words,
                                           CollectiveOptions options);

}  // namespace ddp::gradient_engine
