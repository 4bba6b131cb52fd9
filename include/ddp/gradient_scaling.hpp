// What is done with all gradients of a model between finish() and the optimizer's step. In host memory only: on a GPU
// these throw InvalidArgument. Gradients of 16 bits are computed with in float32, and rounded to nearest even.
//
// Threads: that of the model. Copies of an object share its state.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/export.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"
#include "ddp/sharded_optimizer.hpp"

namespace ddp {
inline namespace DDP_ABI {

// The square root of the sum of the squares of all gradients, summed in double. Infinite or NaN if a gradient is.
DDP_EXPORT double gradient_norm(DistributedDataParallel& model);

// Multiplies all gradients by norm_max / norm if the norm is larger than that. Returns the norm before. Nothing is
// changed if the norm is not finite: see LossScaler, and the option check_finite of the model. norm_max: > 0.
DDP_EXPORT double clip_gradients_by_norm(DistributedDataParallel& model, double norm_max);

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
  CollectiveOptions collective{};
};

class DDP_EXPORT LossScaler {
 public:
  // group: of the model. Throws InvalidArgument for options out of range.
  explicit LossScaler(ProcessGroup group, LossScalerOptions options = {});

  double scale() const;

  // Collective: one all_reduce of 4 bytes, so that all ranks decide alike, also with a communication hook that leaves
  // gradients different. Divides all gradients by the scale. False if a gradient of any rank is infinite or NaN: the
  // optimizer's step is to be left out. Then the scale grows or shrinks. Gradients of 16 bits are rounded: small
  // ones of float16 are lost, so use the other unscale().
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
