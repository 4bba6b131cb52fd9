// Numbers that ranks tell each other through a group, whatever device its memory is on.
#pragma once

#include <cstdint>
#include <vector>

#include "ddp/process_group.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::process_group {

// Collective: the words of every rank, rank after rank. Every rank gives equally many, `within` the same.
std::vector<std::int64_t> all_gather_words(ProcessGroup& group, const std::vector<std::int64_t>& words, Within within,
                                           CollectiveOptions options);

}  // namespace ddp::process_group
