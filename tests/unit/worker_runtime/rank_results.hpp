// run_ranks() of rank_processes.hpp for ranks that each give back a text, which the test then looks at.
#pragma once

#include <ddp/process_group.hpp>

#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {

// What the body returned on each rank, by rank. A rank that throws fails the test, and its result is empty.
inline std::vector<std::string> results_of_ranks(int size, const std::function<std::string(ProcessGroup world)>& body) {
  const ScratchDirectory scratch;
  const auto file_of = [&](int rank) { return scratch.path() / std::to_string(rank); };
  ddp::testing::run_ranks(size, [&](int rank) {
    InitOptions options;
    options.timeout = ddp::testing::kPatience;
    std::ofstream(file_of(rank), std::ios::binary) << body(init_process_group(options));
  });
  std::vector<std::string> results;
  for (int rank = 0; rank < size; ++rank) {
    std::ifstream file(file_of(rank), std::ios::binary);
    results.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return results;
}

}  // namespace ddp::test
