// Which samples a rank sees in an epoch: exactly the indices of PyTorch's DistributedSampler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/export.hpp"
#include "ddp/sampling.hpp"

namespace ddp {
inline namespace DDP_ABI {

// Options of a DistributedSampler.
struct DistributedSamplerOptions {
  std::size_t sample_count = 0;  // in the whole data set; > 0
  int replicas = 1;              // ranks that share the data set; >= 1
  int rank = 0;                  // 0 <= rank < replicas
  bool shuffle = true;           // a new order each epoch, made from seed + epoch; else 0, 1, 2, ...
  std::uint64_t seed = 0;        // the same on all ranks; seeds equal modulo 2^32 give the same order
  bool drop_last = false;        // drop the tail that does not divide by `replicas`, instead of repeating samples
};

// Pure and immutable; any thread.
class DDP_EXPORT DistributedSampler {
 public:
  // Throws InvalidArgument where the options are out of range.
  explicit DistributedSampler(const DistributedSamplerOptions& options);

  // Indices that this rank sees in one epoch; the same on all ranks.
  std::size_t size() const;

  // This rank's indices of an epoch, size() of them, in order.
  std::vector<std::int64_t> indices(std::uint64_t epoch) const;

  // The same, cut into batches of `batch_size` (> 0, per rank).
  std::vector<std::vector<std::int64_t>> batches(std::uint64_t epoch, std::size_t batch_size, LastBatch last) const;

  // The position before the first sample of an epoch.
  SamplerPosition start(std::uint64_t epoch) const;

  // The position after each rank has taken `count` samples more, at most the end of the epoch. Padding is not counted.
  SamplerPosition after(const SamplerPosition& position, std::size_t count) const;

  // This rank's indices from a position to the end of its epoch. The position may be of a run with another number of
  // ranks: no sample before it comes again, and none after it is left out, except by padding and drop_last at the end
  // of the epoch. Throws InvalidArgument for a position of another seed, data set or kind of sampler.
  std::vector<std::int64_t> indices(const SamplerPosition& from) const;

 private:
  DistributedSamplerOptions options_;
};

// torch.randperm(count) on the CPU with a generator seeded by `seed`. Requires count < 214748364, throws
// InvalidArgument beyond. Source: PyTorch, aten/src/ATen/native/TensorFactories.cpp and MT19937RNGEngine.h.
DDP_EXPORT std::vector<std::int64_t> random_permutation(std::size_t count, std::uint64_t seed);

}  // namespace DDP_ABI
}  // namespace ddp
