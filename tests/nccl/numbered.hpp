// Values that tell by themselves of which rank they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace ddp::nccl_test {

constexpr std::size_t kCount = 5;

// 100 * rank + begin, 100 * rank + begin + 1, ...
inline std::vector<std::int64_t> numbered(int rank, std::size_t count = kCount, std::int64_t begin = 1) {
  std::vector<std::int64_t> values(count);
  std::iota(values.begin(), values.end(), 100 * rank + begin);
  return values;
}

// Of all ranks, one after the other.
inline std::vector<std::int64_t> numbered_by_all(int size) {
  std::vector<std::int64_t> all;
  for (int rank = 0; rank < size; ++rank) {
    const auto one = numbered(rank);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

}  // namespace ddp::nccl_test
