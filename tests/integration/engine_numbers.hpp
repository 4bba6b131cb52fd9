// Numbers that tests/interop/engine_reference.py and the programs here have alike.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddp::test {

using Floats = std::vector<float>;

// From -1 to 1. Integers until the division: the same in Python, bit by bit.
inline Floats numbers(std::int64_t count, std::int64_t seed) {
  Floats values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>((i * 7919 + seed * 104729) * (i % 13 + 1) % 2003) / 1001.5F - 1);
  }
  return values;
}

// float32 in native byte order.
inline Floats read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("can't read " + path);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Floats values(bytes.size() / sizeof(float));
  bytes.copy(reinterpret_cast<char*>(values.data()), values.size() * sizeof(float));
  return values;
}

inline bool has_same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline double largest_difference(const Floats& ours, const float* theirs) {
  double largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double difference = std::abs(double{ours[i]} - theirs[i]);
    largest = difference <= largest ? largest : difference;  // a NaN is the largest
  }
  return largest;
}

}  // namespace ddp::test
