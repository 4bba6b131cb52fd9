// What a step of the soak's training adds, known to the workers and to who checks them. Whole numbers: their sums are
// exact in any order as long as they stay below 2^53.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddp::soak {

constexpr std::size_t kParameters = 4096;

// Of rank `rank` in the step that follows `step` finished ones.
inline double gradient(std::int64_t step, int rank, std::size_t index) {
  return static_cast<double>((step * 31 + rank * 7 + static_cast<std::int64_t>(index) * 3) % 1009);
}

// The sum over the ranks of a world.
inline double sum_of_gradients(std::int64_t step, int world_size, std::size_t index) {
  double sum = 0;
  for (int rank = 0; rank < world_size; ++rank) sum += gradient(step, rank, index);
  return sum;
}

}  // namespace ddp::soak
