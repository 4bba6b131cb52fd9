#include "worker_runtime/checkpoint/problem.hpp"

#include "worker_runtime/process_group/host_bytes.hpp"

#include <cstddef>

namespace ddp::checkpoint {

std::string problem_of_ranks(ProcessGroup& group, const std::string& own, CollectiveOptions options) {
  const auto problems = process_group::all_gather_texts(group, own, process_group::Within::checkpoint, options);
  for (std::size_t rank = 0; rank < problems.size(); ++rank) {
    if (!problems[rank].empty()) return "rank " + std::to_string(rank) + ": " + problems[rank];
  }
  return "";
}

}  // namespace ddp::checkpoint
