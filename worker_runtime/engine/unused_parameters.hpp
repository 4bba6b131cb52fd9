// Which ranks left which parameters without a gradient: what each rank sends, and the sentence that all make of it.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddp::gradient_engine {

// A bit for each parameter, from the lowest bit of the first word on.
std::vector<std::int64_t> to_bitmap(const std::vector<std::size_t>& missing, std::size_t parameter_count);

// bitmaps: to_bitmap() of rank 0, of rank 1, ... The message of a GradientError.
std::string describe_unused(const std::vector<std::string>& names, const std::vector<std::int64_t>& bitmaps, int size);

}  // namespace ddp::gradient_engine
