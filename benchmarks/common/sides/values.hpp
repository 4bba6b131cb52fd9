// What ranks write into their buffers: small whole numbers, so that sums are exact.
#pragma once

#include <cstddef>

namespace ddp::benchmarks {

inline float value_of(int rank, std::size_t index) {
  return static_cast<float>(static_cast<int>(index & 255) + rank + 1);
}

inline float sum_of_values(int ranks, std::size_t index) {
  return static_cast<float>(ranks * static_cast<int>(index & 255) + ranks * (ranks + 1) / 2);
}

inline void write_values(float* data, std::size_t count, int rank) {
  for (std::size_t i = 0; i < count; ++i) data[i] = value_of(rank, i);
}

// Whether data[i] is the sum over the ranks of their values at first + i.
inline bool are_sums(const float* data, std::size_t count, int ranks, std::size_t first = 0) {
  bool all = true;
  for (std::size_t i = 0; i < count; ++i) all &= data[i] == sum_of_values(ranks, first + i);
  return all;
}

inline bool are_values(const float* data, std::size_t count, int rank, std::size_t first = 0) {
  bool all = true;
  for (std::size_t i = 0; i < count; ++i) all &= data[i] == value_of(rank, first + i);
  return all;
}

}  // namespace ddp::benchmarks
