// What is done with all gradients of a model between finish() and the optimizer's step. Gradients of 16 bits are
// computed with in float32, and rounded to nearest even.
//
// On a GPU all of this is in order on the stream of the model's options, and the host waits for nothing unless a
// comment below says so; but CUDA loads each kernel at its first use, and may wait for the GPU then. Results have the
// same bits as in host memory, but for norms: the squares are added in another order, the same on every run. A libddp
// that was built without nvcc throws InvalidArgument.
//
// Threads: that of the model. Copies of an object share its state.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/export.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"
#include "ddp/sharded_optimizer.hpp"

namespace ddp {
inline namespace DDP_ABI {

// A norm, which a GPU may still be computing. Copies share it. `double norm = gradient_norm(model)` asks for the value
// at once; a program that ignores the value, or asks later, keeps the host ahead of the GPU.
class DDP_EXPORT GradientNorm {
 public:
  class Impl;
  // For the library itself.
  explicit GradientNorm(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  // On a GPU the first call waits until the norm is there. Throws what the group failed with before that;
  // InvalidArgument if the norm is computed by a CUDA graph.
  double value() const;
  operator double() const { return value(); }

 private:
  std::shared_ptr<Impl> impl_;
};

// The square root of the sum of the squares of all gradients, summed in double. Infinite or NaN if a gradient is.
DDP_EXPORT GradientNorm gradient_norm(DistributedDataParallel& model);

// Multiplies all gradients by norm_max / norm if the norm is larger than that. Returns the norm before. Nothing is
// changed if the norm is not finite: see LossScaler, and the option check_finite of the model. norm_max: > 0.
DDP_EXPORT GradientNorm clip_gradients_by_norm(DistributedDataParallel& model, double norm_max);

// Brings every gradient into [-value_max, value_max]; a NaN stays one. value_max: > 0.
DDP_EXPORT void clip_gradients_by_value(DistributedDataParallel& model, double value_max);

// Dynamic scaling of the loss, for gradients that would be too small for the type that backward computes in:
//
//   backward(loss * scaler.scale());
//   step.finish();
//   if (scaler.unscale(model)) optimizer.step();
//
// Defaults are PyTorch's.
struct LossScalerOptions {
  double scale = 65536;                  // at first; > 0
  double growth = 2;                     // > 1: the scale's factor after growth_interval good steps in a row
  double backoff = 0.5;                  // 0 < backoff < 1: the scale's factor after a step with infinite gradients
  std::uint64_t growth_interval = 2000;  // > 0
  CollectiveOptions collective{};        // of the all_reduce of unscale()
};

// Keeps the scale of the loss, and takes it out of the gradients again; see LossScalerOptions.
class DDP_EXPORT LossScaler {
 public:
  // group: of the model. Throws InvalidArgument for options out of range.
  explicit LossScaler(ProcessGroup group, LossScalerOptions options = {});

  // What the loss of the next step is to be multiplied by.
  double scale() const;

  // Collective: one all_reduce of 4 bytes, so that all ranks decide alike, also with a communication hook that leaves
  // gradients different. Divides all gradients by the scale. False if a gradient of any rank is infinite or NaN: the
  // optimizer's step is to be left out, and gradients are not divided. Then the scale grows or shrinks. Gradients of 16
  // bits are rounded: small ones of float16 are lost, so use the other unscale(). On a GPU the host waits once, for the
  // decision; the first call is also a ProcessGroup::allocate().
  [[nodiscard]] bool unscale(DistributedDataParallel& model);

  // The same for a ShardedOptimizer, whatever its Sharding: its next step() divides the gradients by the scale, in
  // float32. clip_gradients_by_norm() of the optimizer may follow.
  [[nodiscard]] bool unscale(ShardedOptimizer& optimizer);

  // "loss_scaler.scale" and "loss_scaler.good_steps", for checkpoints; the same on all ranks.
  std::vector<Parameter> state();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace DDP_ABI
}  // namespace ddp
