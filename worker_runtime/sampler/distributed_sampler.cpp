#include "ddp/distributed_sampler.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/sampler/random_words.hpp"
#include "worker_runtime/sampler/share.hpp"

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

sampler::Share share_of(const DistributedSamplerOptions& options) {
  return {"DistributedSampler", options.replicas, options.rank, options.drop_last ? Tail::drop : Tail::pad};
}

}  // namespace

DistributedSampler::DistributedSampler(const DistributedSamplerOptions& options) : options_(options) {
  sampler::check_ranks(share_of(options_));
  sampler::check_sample_count(share_of(options_), options_.sample_count);
  if (options_.shuffle) check_permutation_count(options_.sample_count);
}

std::size_t DistributedSampler::size() const {
  return sampler::size_of_share(options_.sample_count, share_of(options_));
}

std::vector<std::int64_t> DistributedSampler::indices(std::uint64_t epoch) const { return indices(start(epoch)); }

std::vector<std::vector<std::int64_t>> DistributedSampler::batches(std::uint64_t epoch, std::size_t batch_size,
                                                                   LastBatch last) const {
  return cut_batches(indices(epoch), batch_size, last);
}

SamplerPosition DistributedSampler::start(std::uint64_t epoch) const {
  SamplerPosition position;
  position.seed = options_.seed;
  position.epoch = epoch;
  position.sample_count = options_.sample_count;
  position.order = sampler::hash_of(
      {static_cast<std::uint64_t>(sampler::Kind::distributed), static_cast<std::uint64_t>(options_.shuffle)});
  return position;
}

SamplerPosition DistributedSampler::after(const SamplerPosition& position, std::size_t count) const {
  sampler::check_position(share_of(options_), start(position.epoch), position);
  return sampler::position_after(share_of(options_), position, count);
}

std::vector<std::int64_t> DistributedSampler::indices(const SamplerPosition& from) const {
  const sampler::Share share = share_of(options_);
  sampler::check_position(share, start(from.epoch), from);
  if (!options_.shuffle) return sampler::take(share, from, [](std::uint64_t place) { return place; });
  const std::vector<std::int64_t> order = random_permutation(options_.sample_count, options_.seed + from.epoch);
  return sampler::take(share, from, [&](std::uint64_t place) { return order[place]; });
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
