// What ranks tell each other of a fault that their flags showed, and the sentence that all of them make of it.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker_runtime/engine/plan/static_graph.hpp"

namespace ddp::gradient_engine {

// A bit for each parameter, from the lowest bit of the first word on.
std::vector<std::int64_t> to_bitmap(const std::vector<std::size_t>& missing, std::size_t parameter_count);

// bitmaps: to_bitmap() of rank 0, of rank 1, ... The message of a GradientError.
std::string describe_unused(const std::vector<std::string>& names, const std::vector<std::int64_t>& bitmaps, int size);

// bitmaps: to_bitmap() of what is not finite on rank 0, on rank 1, ... The message of a GradientError.
std::string describe_non_finite(const std::vector<std::string>& names, const std::vector<std::int64_t>& bitmaps,
                                int size);

// As many numbers for each rank.
std::vector<std::int64_t> miscount_words(const std::optional<Miscount>& own);

// words: miscount_words() of rank 0, of rank 1, ... The message of a GradientError.
std::string describe_miscounts(const std::vector<std::string>& names, const std::vector<std::int64_t>& words, int size);

// bitmaps: to_bitmap() of the frozen parameters of rank 0, of rank 1, ... The message of a MismatchError.
std::string describe_frozen(const std::vector<std::string>& names, const std::vector<std::int64_t>& bitmaps, int size);

}  // namespace ddp::gradient_engine
