// How many elements each rank gives and gets, for the collectives in which ranks differ in that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/fnv1a.hpp"

namespace ddp::process_group {

// By rank. Parts lie side by side in the order of ranks.
struct PartCounts {
  std::vector<std::size_t> of_input;   // of an all_gather_v none: the input is one part
  std::vector<std::size_t> of_output;  // of a reduce_scatter_v none: the output is one part
};

// The counts of one call, a value that may be absent. It has the size of a pointer, because small calls have none and
// count every instruction.
class CallCounts {
 public:
  CallCounts() = default;
  CallCounts(PartCounts counts) : counts_(std::make_unique<const PartCounts>(std::move(counts))) {}  // NOLINT
  CallCounts(const CallCounts& other) : counts_(other ? std::make_unique<const PartCounts>(*other) : nullptr) {}
  CallCounts(CallCounts&&) noexcept = default;
  CallCounts& operator=(const CallCounts& other) { return *this = CallCounts(other); }
  CallCounts& operator=(CallCounts&&) noexcept = default;
  ~CallCounts() = default;

  explicit operator bool() const { return counts_ != nullptr; }
  const PartCounts& operator*() const { return *counts_; }
  const PartCounts* operator->() const { return counts_.get(); }

 private:
  std::unique_ptr<const PartCounts> counts_;
};

// Where the part of a rank begins.
inline std::size_t part_begin(const std::vector<std::size_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

inline std::size_t total_of(const std::vector<std::size_t>& counts) {
  return part_begin(counts, static_cast<int>(counts.size()));
}

// Differs, but for one case in 2^31, where the counts do.
inline std::uint32_t checksum_of(const std::vector<std::size_t>& counts) {
  base::Fnv1a hash;
  for (const std::size_t count : counts) hash.add(count);
  return static_cast<std::uint32_t>(hash.value() >> 32 ^ hash.value()) & 0x7fffffffu;
}

}  // namespace ddp::process_group
