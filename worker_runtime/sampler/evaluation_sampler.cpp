#include "ddp/evaluation_sampler.hpp"

#include "worker_runtime/sampler/random_words.hpp"
#include "worker_runtime/sampler/share.hpp"

#include <algorithm>
#include <string>

namespace ddp {
namespace {

sampler::Share share_of(const EvaluationSamplerOptions& options) {
  return {"EvaluationSampler", options.replicas, options.rank, Tail::uneven};
}

}  // namespace

EvaluationSampler::EvaluationSampler(const EvaluationSamplerOptions& options) : options_(options) {
  sampler::check_ranks(share_of(options_));
  sampler::check_sample_count(share_of(options_), options_.sample_count);
}

std::vector<std::size_t> EvaluationSampler::sizes() const { return sizes(start()); }

std::vector<std::int64_t> EvaluationSampler::indices() const { return indices(start()); }

SamplerPosition EvaluationSampler::start(std::uint64_t epoch) const {
  SamplerPosition position;
  position.epoch = epoch;
  position.sample_count = options_.sample_count;
  position.order = sampler::hash_of({static_cast<std::uint64_t>(sampler::Kind::evaluation)});
  return position;
}

SamplerPosition EvaluationSampler::after(const SamplerPosition& position, std::size_t count) const {
  sampler::check_position(share_of(options_), start(position.epoch), position);
  return sampler::position_after(share_of(options_), position, count);
}

std::vector<std::size_t> EvaluationSampler::sizes(const SamplerPosition& from) const {
  sampler::Share share = share_of(options_);
  sampler::check_position(share, start(from.epoch), from);
  std::vector<std::size_t> sizes;
  for (share.rank = 0; share.rank < options_.replicas; ++share.rank) {
    sizes.push_back(sampler::size_of_share(from.sample_count - from.taken, share));
  }
  return sizes;
}

std::vector<std::int64_t> EvaluationSampler::indices(const SamplerPosition& from) const {
  const sampler::Share share = share_of(options_);
  sampler::check_position(share, start(from.epoch), from);
  return sampler::take(share, from, [](std::uint64_t place) { return place; });
}

void EvaluationSampler::check_gathered(std::size_t count) const {
  if (count == options_.sample_count) return;
  sampler::refuse(
      share_of(options_),
      std::to_string(count) + " gathered elements for " + std::to_string(options_.sample_count) + " samples",
      "one element for each sample, gathered by all_gather_v with the counts sizes()");
}

std::size_t EvaluationSampler::place_of(std::size_t sample) const {
  const auto replicas = static_cast<std::size_t>(options_.replicas);
  const std::size_t rank = sample % replicas;
  const std::size_t before =
      rank * (options_.sample_count / replicas) + std::min(rank, options_.sample_count % replicas);
  return before + sample / replicas;
}

}  // namespace ddp
