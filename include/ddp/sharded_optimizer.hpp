// Optimizers whose state, and gradients if wanted, are divided among the ranks (ZeRO, stages 1 and 2). Each bucket of
// gradients is reduced so that a rank gets the mean of its own part only, the rank updates the parameters of that part,
// and every rank gets the parameters of the others.
//
//   ddp::ShardedOptimizer optimizer(world, parameters, ddp::AdamWOptions{}, ddp::Sharding::gradients);
//   ddp::DistributedDataParallelOptions options;
//   optimizer.prepare(options);
//   ddp::DistributedDataParallel model(world, parameters, options);
//   for (...) {
//     optimizer.wait();  // or wait(i) before parameter i is used, so that the rest still comes during forward
//     auto step = model.begin_step();
//     forward(); backward([&](std::size_t p) { step.ready(p); });
//     step.finish();
//     optimizer.step();
//   }
//   optimizer.wait();  // before parameters are read, such as for a checkpoint
//
// Parameters may be float32, float16 or bfloat16, also in one list. For those of 16 bits, which have gradients of the
// same type, the optimizer keeps float32 master weights: the parameters' values before the first step(). It updates
// these, and rounds them to the parameters, to nearest even. What the program writes to a parameter of 16 bits after
// that is overwritten by the next step().
//
// Memory on N ranks, in bytes for each parameter with AdamW (parameter, gradient, master weight, two moments):
//                          float32       float16 and bfloat16
//   Sharding::none         16            16
//   Sharding::optimizer    8 + 8 / N     4 + 12 / N
//   Sharding::gradients    4 + 12 / N    2 + 14 / N    and up to two buckets
// while training goes on. A model of one or two buckets and at most 16 MiB keeps these. Rebuilding the buckets takes
// the old and the new of a moment together, one after the other.
// With Sync::off the full gradients stay until the next step with Sync::on.
//
// On one or two hosts parameters have the same bits with each of them: all use the same arithmetic on the same means.
// On more hosts the means of reduce_scatter and all_reduce are rounded differently, and clipping adds squares in
// another order. A bucket that does not divide by the ranks is padded. The functions of gradient_scaling.hpp refuse a
// model whose gradients are divided: clip_gradients_by_norm() and clip_gradients_by_value() of the optimizer take their
// place, and LossScaler::unscale() takes the optimizer. Each is one pass over this rank's part of the buckets.
//
// In host memory, or on a GPU, where the state is, too; Sharding::gradients in host memory only. On a GPU all of this
// is in order on the stream of the model's options. The host waits there where clip_gradients_by_norm() and
// unscale_gradients() return what they found, when a kernel is used first, and when buckets are rebuilt. The first call
// of each of the two may also be a ProcessGroup::allocate().
//
// Threads: that of the model. Copies share their state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/export.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
inline namespace DDP_ABI {

// What is divided among the ranks.
enum class Sharding : std::uint8_t {
  none,       // each rank updates all parameters; nothing is sent after the gradients
  optimizer,  // ZeRO stage 1: the optimizer's state is divided. gradient(i) means nothing after finish()
  gradients,  // ZeRO stage 2: gradients too. gradient(i) is zero after finish()
};

// AdamW. p is the parameter, g its gradient, t the number of steps that have updated this parameter, from 1 on. Source:
// Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019; the order of operations is PyTorch's.
//   p = p * (1 - learning_rate * weight_decay);  m = m + (1 - beta1) * (g - m);  v = beta2 * v + (1 - beta2) * g^2
//   p = p - learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
struct AdamWOptions {
  double learning_rate = 1e-3;  // >= 0
  double beta1 = 0.9;           // 0 <= beta1 < 1
  double beta2 = 0.999;         // 0 <= beta2 < 1
  double epsilon = 1e-8;        // > 0
  double weight_decay = 1e-2;   // >= 0
};

// SGD, with p and g as in AdamWOptions.
//   g = g + weight_decay * p;  m = g in a parameter's first step, then momentum * m + g
//   p = p - learning_rate * m, or with nesterov: p - learning_rate * (g + momentum * m)
struct SgdOptions {
  double learning_rate = 1e-2;  // >= 0
  double momentum = 0;          // 0 <= momentum < 1; 0 keeps no state
  double weight_decay = 0;      // >= 0
  bool nesterov = false;        // needs a momentum above 0
};

// An optimizer for the parameters of one model; an example is at the top of this file.
class DDP_EXPORT ShardedOptimizer {
 public:
  // group, parameters: those of the model, in the same order. The memory of parameters outlives this object and the
  // model; the last of them that ends waits for what is still sent. Throws InvalidArgument for options out of range,
  // for parameters of other types or not on the group's device, and for Sharding::gradients on a GPU.
  ShardedOptimizer(ProcessGroup group, std::vector<Parameter> parameters,
                   std::variant<AdamWOptions, SgdOptions> options, Sharding sharding);

  // Sets what the model needs: its communication hook, and with Sharding::gradients release_gradients. This object
  // serves that one model.
  void prepare(DistributedDataParallelOptions& options);

  // After finish() of a step with Sync::on. Collective. Updates this rank's part, and begins to send and receive
  // parameters. A bucket that was not reduced in that step is left alone: all of it is frozen. If step() is left out,
  // the next step of the model forgets these gradients, and what was done with them. Throws InvalidArgument before the
  // model is made.
  void step();

  // Waits until all parameters are there, or parameter `index`. Throws what the collectives failed with.
  void wait();
  void wait(std::size_t index);

  // From the next step() on; on every rank alike.
  void set_learning_rate(double learning_rate);

  // A parameter that is skipped is not updated, as if it had no gradient. On every rank alike. Frozen parameters are
  // skipped anyway, and so are, with Unused::keep, parameters that no rank used.
  void set_skipped(std::size_t index, bool is_skipped);

  // Collective, between finish() and step(): the square root of the sum of the squares of all gradients; and, if it is
  // larger than norm_max (> 0), a factor of norm_max / norm for the gradients in the next step(). Gradients that were
  // clipped before count as clipped.
  double clip_gradients_by_norm(double norm_max);

  // Between finish() and step(): brings every gradient of the next step() into [-value_max, value_max] (> 0); a NaN
  // stays one. Each rank does its part: nothing is sent. If the loss is scaled, unscale_gradients() comes first, and
  // value_max is of the divided gradients. After clip_gradients_by_norm() it is of the clipped ones; the factors of
  // both are taken out of value_max, so a limit may then be off by its last bit.
  void clip_gradients_by_value(double value_max);

  // Collective, between finish() and step(): one all_reduce of 4 bytes. The gradients in the next step() are divided by
  // `scale` (> 0), in float32. False if a gradient of any rank is infinite or NaN: then step() is to be left out, and
  // these gradients are forgotten. Clipping comes after it.
  [[nodiscard]] bool unscale_gradients(double scale);

  // For a checkpoint (ddp::Checkpointer saves and loads both). How often each parameter was updated, the same on all
  // ranks: one tensor, "optimizer.steps".
  Parameter steps();

  // Elements of one moment, or of the float32 master weights, of a parameter.
  struct Shard {
    std::string name;                 // of that of the whole parameter: "optimizer.<name>.m", ".v" or ".master"
    std::vector<std::int64_t> shape;  // of the parameter
    std::size_t first = 0;            // element at which values begin
    MemoryRange values;               // consecutive elements of it
  };
  // This rank's part of them; with Sharding::none all of them, on every rank. Addresses are the same until
  // buckets are rebuilt.
  std::vector<Shard> shards();
  // What the constructor was given.
  Sharding sharding() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace DDP_ABI
}  // namespace ddp
