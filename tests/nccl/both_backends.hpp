// The same code on the backend cpu and on nccl: what its ranks see of it is to be the same.
#pragma once

#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "tests/nccl/rank.hpp"

namespace ddp::nccl_test {

// What each rank sees of a case, on the backend cpu and on nccl.
struct Seen {
  std::size_t count = 0;
  std::array<double, 8'000> values{};
  void add(double value) { values.at(count++) = value; }
  void add(const std::vector<double>& all) {
    for (const double each : all) add(each);
  }
};
using Case = std::function<void(ProcessGroup& group, Seen& seen)>;

inline std::vector<std::vector<double>> seen_on(const char* backend, int size, const Case& code) {
  testing::Shared<std::array<Seen, 4>> seen;
  testing::run_ranks(size, [&](int rank) {
    auto group = join(testing::kPatience, {.backend = backend});
    code(group, (*seen)[static_cast<std::size_t>(rank)]);
    group.barrier();
  });
  std::vector<std::vector<double>> all;
  for (int rank = 0; rank < size; ++rank) {
    const Seen& its = (*seen)[static_cast<std::size_t>(rank)];
    EXPECT_GT(its.count, 0U);
    all.emplace_back(its.values.begin(), its.values.begin() + static_cast<std::ptrdiff_t>(its.count));
  }
  return all;
}

inline void expect_the_same_on_both(const Case& code, bool is_the_same_on_all = true) {
  for (const int size : {1, 2}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    const auto host = seen_on("cpu", size, code), device = seen_on("nccl", size, code);
    for (std::size_t rank = 0; rank < host.size(); ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      EXPECT_THAT(device[rank], ::testing::ElementsAreArray(host[rank]));
      if (is_the_same_on_all) {
        EXPECT_EQ(device[rank], device[0]);
      }
    }
  }
}

}  // namespace ddp::nccl_test
