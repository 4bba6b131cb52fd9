// Which samples a rank sees in an epoch: exactly the indices of PyTorch's DistributedSampler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/export.hpp"

namespace ddp {
inline namespace DDP_ABI {

struct DistributedSamplerOptions {
  std::size_t sample_count = 0;  // in the whole data set; > 0
  int replicas = 1;              // ranks that share the data set; >= 1
  int rank = 0;                  // 0 <= rank < replicas
  bool shuffle = true;           // a new order each epoch, made from seed + epoch; else 0, 1, 2, ...
  std::uint64_t seed = 0;        // the same on all ranks; seeds equal modulo 2^32 give the same order
  bool drop_last = false;        // drop the tail that does not divide by `replicas`, instead of repeating samples
};

enum class LastBatch : std::uint8_t { keep, drop };  // what becomes of a batch that is not full

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

 private:
  DistributedSamplerOptions options_;
};

// torch.randperm(count) on the CPU with a generator seeded by `seed`. Requires count < 214748364, throws
// InvalidArgument beyond. Source: PyTorch, aten/src/ATen/native/TensorFactories.cpp and MT19937RNGEngine.h.
DDP_EXPORT std::vector<std::int64_t> random_permutation(std::size_t count, std::uint64_t seed);

}  // namespace DDP_ABI
}  // namespace ddp
