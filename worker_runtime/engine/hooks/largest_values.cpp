#include "worker_runtime/engine/hooks/largest_values.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <functional>

namespace ddp::gradient_engine {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU, kInfinity = 0x7f800000U;
constexpr int kLeadingShift = 20;  // keeps the 8 exponent bits and 3 mantissa bits
constexpr std::size_t kBins = (kInfinity >> kLeadingShift) + 1;
constexpr std::size_t kTables = 4;  // separate counters, because increments of the same one would wait for each other
constexpr std::size_t kBlock = 16;

// Orders as the magnitudes do.
std::uint32_t key_of(float value) { return std::min(std::bit_cast<std::uint32_t>(value) & kMagnitude, kInfinity); }
std::size_t bin_of(float value) { return key_of(value) >> kLeadingShift; }

std::array<std::size_t, kBins> counts_of(std::span<const float> values) {
  std::array<std::array<std::uint32_t, kBins>, kTables> tables{};
  std::size_t i = 0;
  for (; i + kTables <= values.size(); i += kTables)
    for (std::size_t table = 0; table < kTables; ++table) ++tables[table][bin_of(values[i + table])];
  for (; i < values.size(); ++i) ++tables[0][bin_of(values[i])];
  std::array<std::size_t, kBins> counts{};
  for (const auto& table : tables)
    for (std::size_t bin = 0; bin < kBins; ++bin) counts[bin] += table[bin];
  return counts;
}

struct Limit {
  std::uint32_t key = 0;  // of the smallest value that is taken
  std::size_t equal = 0;  // number of values with this key to take
};

Limit limit_of(std::span<const float> values, std::size_t wanted, std::vector<std::uint32_t>& scratch) {
  const auto counts = counts_of(values);
  std::size_t bin = kBins - 1;
  for (; counts[bin] < wanted; --bin) wanted -= counts[bin];
  if (scratch.size() <= counts[bin]) scratch.resize(counts[bin] + 1);  // one more as a dump for other values
  std::size_t count = 0;
  for (const float value : values) {
    const auto key = key_of(value);
    scratch[count] = key;
    count += (key >> kLeadingShift) == bin ? 1 : 0;
  }
  const auto begin = scratch.begin(), nth = begin + static_cast<std::ptrdiff_t>(wanted - 1);
  std::nth_element(begin, nth, begin + static_cast<std::ptrdiff_t>(count), std::greater<>());
  const auto key = *nth;
  return {key, static_cast<std::size_t>(std::count(begin, nth + 1, key))};
}

}  // namespace

void take_largest(std::span<const float> values, std::span<PlacedValue> largest, std::vector<std::uint32_t>& scratch) {
  if (largest.empty()) return;
  auto [key, equal] = limit_of(values, largest.size(), scratch);
  std::size_t taken = 0;
  for (std::size_t block = 0; block < values.size() && taken < largest.size(); block += kBlock) {
    const std::size_t end = std::min(block + kBlock, values.size());
    std::uint32_t greatest = 0;
    for (std::size_t i = block; i < end; ++i) greatest = std::max(greatest, key_of(values[i]));
    if (greatest < key) continue;
    for (std::size_t i = block; i < end && taken < largest.size(); ++i) {
      const auto own = key_of(values[i]);
      if (own < key || (own == key && equal == 0)) continue;
      if (own == key) --equal;
      largest[taken++] = {static_cast<std::uint32_t>(i), values[i]};
    }
  }
}

}  // namespace ddp::gradient_engine
