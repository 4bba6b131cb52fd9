#include "ddp/distributed_sampler.hpp"

#include "ddp/error.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>

namespace ddp {
namespace {

// From here on PyTorch shuffles by another algorithm, with 64 bits for each step.
// Source: aten/src/ATen/native/TensorFactories.cpp.
constexpr std::size_t kPermutationCountEnd = std::numeric_limits<std::uint32_t>::max() / 20;

void check_permutation_count(std::size_t count) {
  if (count < kPermutationCountEnd) return;
  throw InvalidArgument("a permutation of " + std::to_string(count) + " samples is not supported\nwhere: shuffling\n" +
                        "try:   fewer than " + std::to_string(kPermutationCountEnd) + " samples, or shuffle = false");
}

void check(const DistributedSamplerOptions& options) {
  const auto refuse = [&](const std::string& what, const std::string& advice) {
    throw InvalidArgument(what + "\nwhere: DistributedSampler of rank " + std::to_string(options.rank) +
                          "\ntry:   " + advice);
  };
  if (options.replicas < 1) refuse(std::to_string(options.replicas) + " replicas", "replicas = world.size()");
  if (options.rank < 0 || options.rank >= options.replicas) {
    refuse("rank " + std::to_string(options.rank) + " is not one of " + std::to_string(options.replicas) + " replicas",
           "rank = world.rank() and replicas = world.size()");
  }
  const auto count_max = static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max() / 2);
  if (options.sample_count < 1 || options.sample_count > count_max) {
    refuse("a data set of " + std::to_string(options.sample_count) + " samples", "a count above 0");
  }
  if (options.shuffle) check_permutation_count(options.sample_count);
}

}  // namespace

DistributedSampler::DistributedSampler(const DistributedSamplerOptions& options) : options_(options) {
  check(options_);
}

std::size_t DistributedSampler::size() const {
  const auto replicas = static_cast<std::size_t>(options_.replicas);
  const bool pads = !options_.drop_last && options_.sample_count % replicas != 0;
  return options_.sample_count / replicas + (pads ? 1 : 0);
}

std::vector<std::int64_t> DistributedSampler::indices(std::uint64_t epoch) const {
  std::vector<std::int64_t> order;
  if (options_.shuffle) order = random_permutation(options_.sample_count, options_.seed + epoch);
  std::vector<std::int64_t> mine(size());
  auto position = static_cast<std::size_t>(options_.rank);
  for (std::int64_t& index : mine) {
    // Past the end the order starts again: PyTorch's padding, however many samples it repeats.
    const std::size_t wrapped = position % options_.sample_count;
    index = options_.shuffle ? order[wrapped] : static_cast<std::int64_t>(wrapped);
    position += static_cast<std::size_t>(options_.replicas);
  }
  return mine;
}

std::vector<std::vector<std::int64_t>> DistributedSampler::batches(std::uint64_t epoch, std::size_t batch_size,
                                                                   LastBatch last) const {
  if (batch_size == 0) {
    throw InvalidArgument("batches of 0 samples\nwhere: DistributedSampler::batches\ntry:   a size above 0");
  }
  const std::vector<std::int64_t> all = indices(epoch);
  std::vector<std::vector<std::int64_t>> batches;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t count = std::min(batch_size, all.size() - begin);
    if (count < batch_size && last == LastBatch::drop) break;
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
    batches.emplace_back(first, first + static_cast<std::ptrdiff_t>(count));
    begin += count;
  }
  return batches;
}

std::vector<std::int64_t> DDP_ABI::random_permutation(std::size_t count, std::uint64_t seed) {
  check_permutation_count(count);
  std::vector<std::int64_t> order(count);
  std::iota(order.begin(), order.end(), std::int64_t{0});
  // PyTorch's engine is the standard Mersenne Twister, seeded with the low half of the seed.
  std::mt19937 engine(static_cast<std::uint32_t>(seed));
  for (std::size_t i = 0; i + 1 < count; ++i) std::swap(order[i], order[i + engine() % (count - i)]);
  return order;
}

}  // namespace ddp
