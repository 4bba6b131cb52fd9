// Compiled without fused multiply-adds, which would round otherwise: a draw is the same on every machine.
#include "ddp/weighted_sampler.hpp"

#include "worker_runtime/sampler/random_words.hpp"
#include "worker_runtime/sampler/share.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

namespace ddp {
namespace {

sampler::Share share_of(const WeightedSamplerOptions& options) {
  return {"WeightedSampler", options.replicas, options.rank, options.tail};
}

void check(const WeightedSamplerOptions& options) {
  const sampler::Share share = share_of(options);
  sampler::check_ranks(share);
  double sum = 0;
  std::size_t not_zero = 0;
  for (std::size_t i = 0; i < options.weights.size(); ++i) {
    const double weight = options.weights[i];
    if (!std::isfinite(weight) || weight < 0) {
      sampler::refuse(share, "the weight of sample " + std::to_string(i) + " is " + std::to_string(weight),
                      "finite weights of 0 or above");
    }
    sum += weight;
    if (weight > 0) ++not_zero;
  }
  if (not_zero == 0) {
    sampler::refuse(share, std::to_string(options.weights.size()) + " weights, none of them above 0",
                    "one weight for each sample of the data set, some above 0");
  }
  if (!std::isfinite(sum)) {
    sampler::refuse(share, "the weights add up to infinity", "smaller weights: only their ratios count");
  }
  if (options.draw_count < 1 || options.draw_count > sampler::kSampleCountMax) {
    sampler::refuse(share, "a draw_count of " + std::to_string(options.draw_count), "a count above 0");
  }
  if (!options.replacement && options.draw_count > not_zero) {
    sampler::refuse(share,
                    std::to_string(options.draw_count) + " draws without replacement, but only " +
                        std::to_string(not_zero) + " weights are above 0",
                    "replacement = true, or a draw_count of at most " + std::to_string(not_zero));
  }
}

// Evenly distributed over [0, end), in steps of end / 2^53.
double below(double end, std::uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53 * end; }

// Weights as the leaves of a binary tree, in which each node holds the sum of its two. A weight that is taken out
// leaves no rounding behind: the sums above it are made anew.
class SumTree {
 public:
  explicit SumTree(const std::vector<double>& weights) : leaves_(std::bit_ceil(weights.size())), sums_(2 * leaves_) {
    std::copy(weights.begin(), weights.end(), sums_.begin() + static_cast<std::ptrdiff_t>(leaves_));
    for (std::size_t node = leaves_ - 1; node > 0; --node) add_up(node);
  }

  // The leaf that a random word chooses, which is not 0. Requires that some leaf is not.
  std::size_t draw(std::uint64_t word) const {
    double rest = below(sums_[1], word);
    std::size_t node = 1;
    while (node < leaves_) {
      const double left = sums_[2 * node];
      const double right = sums_[2 * node + 1];
      // Rounding may leave a `rest` behind the last leaf that is not 0; then it is that leaf.
      const bool goes_right = rest >= left && right > 0;
      if (goes_right) rest -= left;
      node = 2 * node + (goes_right ? 1 : 0);
    }
    return node - leaves_;
  }

  void take_out(std::size_t leaf) {
    std::size_t node = leaves_ + leaf;
    sums_[node] = 0;
    while ((node /= 2) > 0) add_up(node);
  }

 private:
  void add_up(std::size_t node) { sums_[node] = sums_[2 * node] + sums_[2 * node + 1]; }

  std::size_t leaves_;        // a power of two
  std::vector<double> sums_;  // of node i, the parent of nodes 2 i and 2 i + 1; node 0 is unused
};

}  // namespace

class WeightedSampler::Table {
 public:
  explicit Table(const WeightedSamplerOptions& given) : options(given), tree(given.weights) {
    order_ = sampler::hash_of(
        {static_cast<std::uint64_t>(sampler::Kind::weighted), options.replacement ? 1U : 0U, options.weights.size()});
    for (const double weight : options.weights) {
      order_ = sampler::hash_of({order_, std::bit_cast<std::uint64_t>(weight + 0.0)});  // + 0.0: of -0 it makes 0
    }
    options.weights = {};  // the tree has them
  }

  sampler::Share share() const { return share_of(options); }

  SamplerPosition start(std::uint64_t epoch) const {
    SamplerPosition position;
    position.seed = options.seed;
    position.epoch = epoch;
    position.sample_count = options.draw_count;
    position.order = order_;
    return position;
  }

  // All draws of an epoch, in order.
  std::vector<std::size_t> draw_without_replacement(const sampler::RandomWords& words) const {
    SumTree left = tree;
    std::vector<std::size_t> draws(options.draw_count);
    for (std::size_t i = 0; i < draws.size(); ++i) {
      draws[i] = left.draw(words.at(i));
      left.take_out(draws[i]);
    }
    return draws;
  }

  WeightedSamplerOptions options;  // without the weights
  SumTree tree;

 private:
  std::uint64_t order_;
};

WeightedSampler::WeightedSampler(const WeightedSamplerOptions& options)
    : table_((check(options), std::make_shared<const Table>(options))) {}

std::size_t WeightedSampler::size() const {
  return sampler::size_of_share(table_->options.draw_count, table_->share());
}

std::vector<std::int64_t> WeightedSampler::indices(std::uint64_t epoch) const { return indices(start(epoch)); }

SamplerPosition WeightedSampler::start(std::uint64_t epoch) const { return table_->start(epoch); }

SamplerPosition WeightedSampler::after(const SamplerPosition& position, std::size_t count) const {
  sampler::check_position(table_->share(), start(position.epoch), position);
  return sampler::position_after(table_->share(), position, count);
}

std::vector<std::int64_t> WeightedSampler::indices(const SamplerPosition& from) const {
  sampler::check_position(table_->share(), start(from.epoch), from);
  const sampler::RandomWords words{static_cast<std::uint64_t>(sampler::Kind::weighted), from.seed, from.epoch};
  if (table_->options.replacement) {
    return sampler::take(table_->share(), from,
                         [&](std::uint64_t place) { return table_->tree.draw(words.at(place)); });
  }
  const std::vector<std::size_t> draws = table_->draw_without_replacement(words);
  return sampler::take(table_->share(), from, [&](std::uint64_t place) { return draws[place]; });
}

}  // namespace ddp
