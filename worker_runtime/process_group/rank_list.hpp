// Ranks in words, for messages.
#pragma once

#include <string>
#include <vector>

namespace ddp::process_group {

// "rank 3", "ranks 1 and 3", "ranks 1, 2 and 3"; of many the first sixteen, then "and 5 more". Requires one at least.
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace ddp::process_group
