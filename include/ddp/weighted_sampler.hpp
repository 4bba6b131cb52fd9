// Draws samples at random, each as often as its weight says: for classes of unequal size, or samples of unequal worth.
// All ranks make the same draw for an epoch, from the seed and the epoch, and each rank takes its share of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ddp/export.hpp"
#include "ddp/sampling.hpp"

namespace ddp {
inline namespace DDP_ABI {

// Options of a WeightedSampler.
struct WeightedSamplerOptions {
  // Of each sample of the data set, the same on all ranks; finite, >= 0, not all 0. Only their ratios count. A sample
  // of weight 0 is never drawn.
  std::vector<double> weights{};
  // Samples that all ranks together draw in an epoch; > 0. Without replacement at most the weights above 0.
  std::size_t draw_count = 0;
  // true   each draw is independent: sample i comes with probability weights[i] / (sum of weights)
  // false  a sample that was drawn is not drawn again in the epoch: each draw is among those that are left
  bool replacement = true;
  int replicas = 1;        // >= 1
  int rank = 0;            // 0 <= rank < replicas
  std::uint64_t seed = 0;  // the same on all ranks
  Tail tail = Tail::pad;   // pad repeats the first draws, also without replacement
};

// Pure and immutable; any thread. Copies share the table of weights.
//
// Memory: 16 to 32 bytes for each weight; without replacement as much again in indices().
// Time of indices(): with replacement that of this rank's draws; without, of all draws before the end of the epoch.
class DDP_EXPORT WeightedSampler {
 public:
  // Throws InvalidArgument where the options are out of range, and where the weights add up to infinity.
  explicit WeightedSampler(const WeightedSamplerOptions& options);

  // Indices that this rank sees in one epoch.
  std::size_t size() const;

  // This rank's indices of an epoch, size() of them, in the order of the draws.
  std::vector<std::int64_t> indices(std::uint64_t epoch) const;

  // The position before the first draw of an epoch.
  SamplerPosition start(std::uint64_t epoch) const;

  // The position after each rank has taken `count` draws more, at most the end of the epoch. Padding is not counted.
  SamplerPosition after(const SamplerPosition& position, std::size_t count) const;

  // This rank's indices from a position to the end of its epoch. The position may be of a run with another number of
  // ranks: no draw is repeated or left out, except by `tail`. Throws InvalidArgument for a position of another seed,
  // draw_count, weights or kind of sampler.
  std::vector<std::int64_t> indices(const SamplerPosition& from) const;

 private:
  class Table;

  std::shared_ptr<const Table> table_;
};

}  // namespace DDP_ABI
}  // namespace ddp
