// The simulation's own draws from one seeded generator: the distributions of std:: differ between libraries, and a seed
// is to replay the same history everywhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

namespace ddp::simulation {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}

  // In [0, end). Requires end > 0. Uneven by less than 2^-32, which no history notices.
  std::uint64_t below(std::uint64_t end) { return engine_() % end; }
  int between(int first, int last) {
    return first + static_cast<int>(below(static_cast<std::uint64_t>(last - first) + 1));
  }
  bool chance(int percent) { return static_cast<int>(below(100)) < percent; }
  std::chrono::microseconds between(std::chrono::microseconds shortest, std::chrono::microseconds longest) {
    return shortest + std::chrono::microseconds(below(static_cast<std::uint64_t>((longest - shortest).count()) + 1));
  }
  template <typename T>
  const T& one_of(const std::vector<T>& choices) {
    return choices[below(choices.size())];
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace ddp::simulation
