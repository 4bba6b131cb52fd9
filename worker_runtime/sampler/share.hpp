// A rank's share of an order of samples, from a position on; and the checks that all samplers have in common.
//
// Pure; any thread. Errors: InvalidArgument, whose text names the sampler and the rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ddp/sampling.hpp"

namespace ddp::sampler {

struct Share {
  const char* sampler;  // the class, for messages
  int replicas;
  int rank;
  Tail tail;
};

[[noreturn]] void refuse(const Share& share, const std::string& what, const std::string& advice);

// Requires replicas >= 1 and 0 <= rank < replicas.
void check_ranks(const Share& share);

// Requires 1 <= count <= kSampleCountMax.
constexpr std::uint64_t kSampleCountMax = INT64_MAX / 2;
void check_sample_count(const Share& share, std::uint64_t count);

// Requires that `given` is of the same seed, count and order as `own`, and within the epoch.
void check_position(const Share& share, const SamplerPosition& own, const SamplerPosition& given);

// How many of `rest` samples `rank` takes.
std::size_t size_of_share(std::uint64_t rest, const Share& share);

// After each rank has taken `count` samples more, at most the end of the epoch.
SamplerPosition position_after(const Share& share, SamplerPosition position, std::size_t count);

// The samples at this rank's places of the order from `from` on. `at` gives the sample at a place below sample_count.
// Behind the end the order starts again: PyTorch's padding, however many samples are repeated.
template <class At>
std::vector<std::int64_t> take(const Share& share, const SamplerPosition& from, At at) {
  std::vector<std::int64_t> mine(size_of_share(from.sample_count - from.taken, share));
  std::uint64_t place = from.taken + static_cast<std::uint64_t>(share.rank);
  for (std::int64_t& index : mine) {
    index = static_cast<std::int64_t>(at(place % from.sample_count));
    place += static_cast<std::uint64_t>(share.replicas);
  }
  return mine;
}

}  // namespace ddp::sampler
