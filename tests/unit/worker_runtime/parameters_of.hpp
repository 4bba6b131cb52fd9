// Parameters "p0", "p1", ... of one dimension, one for each vector of values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"

namespace ddp::test {

inline std::vector<Parameter> parameters_of(std::vector<std::vector<float>>& values) {
  std::vector<Parameter> all;
  for (std::size_t p = 0; p < values.size(); ++p) {
    all.push_back({"p" + std::to_string(p), {static_cast<std::int64_t>(values[p].size())}, values[p]});
  }
  return all;
}

}  // namespace ddp::test
