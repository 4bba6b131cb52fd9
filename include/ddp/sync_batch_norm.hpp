// Batch normalisation over the batches of all ranks, as functions on the memory of the host or of the group's GPU: the
// same result, up to rounding, as batch normalisation of the joined batch. Ranks may have batches of different sizes,
// also none.
//
//   y = (x - mean) * inverse_std * weight + bias,  inverse_std = 1 / sqrt(variance + epsilon)
//
// with the mean and the (biased) variance over all elements of a channel on all ranks. Sums are kept in double; counts,
// means and squared distances are combined by Chan's formula in the order of the ranks, so all ranks have the same
// bits.
//
// On a GPU everything is in order on the stream of the options. The host waits only where memory for statistics is
// allocated or freed. CUDA loads each kernel at its first use, and may wait for the GPU then. Sums are added in another
// order than in host memory, the same on every run: statistics differ from the host's by rounding of doubles. A libddp
// that was built without nvcc throws InvalidArgument.
//
// Group: one of its own, such as world.split(0). A DistributedDataParallel begins collectives of its group during
// backward, on each rank when its buckets are full, and these would mix with ours. It does not go with join(): ranks
// without inputs take part with empty batches, or UnevenInputs::stop ends all at once.
//
// Threads: one at a time for each group. Errors: InvalidArgument for sizes that don't fit; what collectives throw.
#pragma once

#include <cstddef>
#include <memory>

#include "ddp/export.hpp"
#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
inline namespace DDP_ABI {

// x has the shape [batch, channels, points]: points is 1 for vectors, height * width for images. channels is the same
// on all ranks.
struct BatchShape {
  std::size_t batch = 0;     // of this rank; may be 0
  std::size_t channels = 0;  // the same on all ranks
  std::size_t points = 1;    // of one channel of one sample
  Device device{};           // of every array of a call: the host, or ProcessGroup::device()

  std::size_t size() const { return batch * channels * points; }  // in elements
};

// Options of sync_batch_norm_forward(), the same on all ranks.
struct BatchNormOptions {
  double epsilon = 1e-5;  // what is added to the variance
  double momentum = 0.1;  // of the running statistics: running = (1 - momentum) * running + momentum * of this batch
  CollectiveOptions collective{};  // of the all_gather
};

// What backward needs of a forward; the same on all ranks. It lies on the device of the shape.
//
// A forward uses the memory of a former one again if both have as many channels, and ranks, on the same device. A layer
// on a GPU keeps its statistics from step to step for that: then the host never waits, and the calls may be captured
// into a CUDA graph. Copies share the memory.
struct BatchStatistics {
  Span<const double> mean, inverse_std;  // one value for each channel
  Span<const double> count;              // one value: the elements of a channel on all ranks
  std::shared_ptr<void> memory;          // of these, and of the numbers that ranks exchange
  std::size_t bytes = 0;                 // of the memory
};

// Each pointer of `channels` values, or null: weight counts as 1 and bias as 0 then, and running statistics are not
// kept.
struct BatchNormParameters {
  const float* weight = nullptr;      // null: 1
  const float* bias = nullptr;        // null: 0
  float* running_mean = nullptr;      // null: not kept
  float* running_variance = nullptr;  // takes in the unbiased variance: divided by count - 1
};

// Collective: one all_gather of 2 * channels + 1 numbers. x and y have shape.size() values, and may be the same memory.
// In host memory it throws InvalidArgument on all ranks if they have one element of a channel or none together: it has
// no variance. On a GPU y is NaN then, and running statistics stay.
DDP_EXPORT void sync_batch_norm_forward(ProcessGroup& group, const BatchShape& shape, const float* x,
                                        const BatchNormParameters& parameters, float* y, BatchStatistics& statistics,
                                        const BatchNormOptions& options = {});

// Collective: one all_reduce of 2 * channels numbers. of_y, x, of_x: shape.size() values; of_x and of_y may be the same
// memory. of_weight, of_bias: `channels` values, or null; this rank's own sums are added to them, which
// DistributedDataParallel averages as other gradients.
DDP_EXPORT void sync_batch_norm_backward(ProcessGroup& group, const BatchShape& shape, const float* of_y,
                                         const float* x, const BatchStatistics& statistics, const float* weight,
                                         float* of_x, float* of_weight, float* of_bias, CollectiveOptions options = {});

}  // namespace DDP_ABI
}  // namespace ddp
