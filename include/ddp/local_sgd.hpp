// Training in which ranks average parameters every few steps, instead of gradients in every step: less to send over
// slow links. A DistributedDataParallel with post_local_sgd() still agrees on a few bytes in each finish(), and so
// waits for the other ranks there. Ranks that are to run freely between averages use ParameterAverage or DiLoCo without
// one.
//
//   DistributedDataParallelOptions options;
//   options.communication_hook = ddp::post_local_sgd({.start_step = 500});  // from then on: no gradients are sent
//   DistributedDataParallel model(world, parameters, options);
//   ddp::ParameterAverage average({{world, 16}}, parameters, {.start_step = 500});
//   ...
//   step.finish();
//   optimizer.step();
//   average.step();
//
// Threads: one at a time. Copies share their state. step() is collective: every rank calls it equally often.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ddp/communication_hook.hpp"
#include "ddp/export.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
inline namespace DDP_ABI {

// A hook that averages gradients over all ranks for the first steps with Sync::on, and later over `subgroup` only, or,
// if that is empty, not at all. Gradients differ between ranks then, and with them what join() leaves. The subgroup has
// this rank in it (ProcessGroup::split makes one of each host's ranks). UnevenInputs::divide_by_active is refused: a
// local gradient is no sum over the ranks, so their number divides nothing. State: "post_local_sgd.step", the same on
// all ranks.
struct PostLocalSgdOptions {
  std::uint64_t start_step = 0;  // the first step that is local
  ProcessGroup subgroup{};       // empty: no gradients are sent from start_step on
};
DDP_EXPORT std::shared_ptr<CommunicationHook> post_local_sgd(const PostLocalSgdOptions& options = {});

// How often the ranks of a group average their parameters.
struct AverageLevel {
  ProcessGroup group;        // with this rank in it
  std::uint64_t period = 1;  // in steps; > 0
};

// Options of a ParameterAverage, the same on all ranks.
struct ParameterAverageOptions {
  std::uint64_t start_step = 0;    // steps before it are not counted
  CollectiveOptions collective{};  // of the averages
};

// Averages parameters every so many steps. With several levels it is hierarchical: the ranks of a host every 4 steps,
// say, and all ranks every 16. Of the levels that are due in a step, the last one counts.
class DDP_EXPORT ParameterAverage {
 public:
  // levels: at least one; the periods rise, each a multiple of the one before. parameters: of any floating-point type,
  // on the groups' device; their memory outlives this object. Throws InvalidArgument.
  ParameterAverage(std::vector<AverageLevel> levels, std::vector<Parameter> parameters,
                   ParameterAverageOptions options = {});

  // Call it after each step of the optimizer. Returns whether it has averaged: it does if (step - start_step) is a
  // multiple of a period, and step >= start_step, where the first step is 0. Throws what the collectives fail with.
  bool step();

  // "parameter_average.step", for checkpoints; the same on all ranks.
  std::vector<Parameter> state();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

// DiLoCo (Douillard and others, 2023): as ParameterAverage, but what the ranks have changed on average
// since the last one is taken for a gradient, and an outer optimizer, SGD with Nesterov momentum, makes a step with it.
//   change = parameters then - mean of the parameters now;  momentum = outer_momentum * momentum + change
//   parameters = parameters then - outer_learning_rate * (change + outer_momentum * momentum)
// Memory: the parameters twice more. In host memory only, float32 and float64.
struct DiLoCoOptions {
  std::uint64_t period = 500;        // in steps; > 0
  double outer_learning_rate = 0.7;  // > 0
  double outer_momentum = 0.9;       // 0 <= outer_momentum < 1
  CollectiveOptions collective{};    // of the averages
};

// Makes the steps of the outer optimizer; see DiLoCoOptions.
class DDP_EXPORT DiLoCo {
 public:
  // The parameters are the same on all ranks, as a DistributedDataParallel makes them; their memory outlives this
  // object. Throws InvalidArgument.
  DiLoCo(ProcessGroup group, std::vector<Parameter> parameters, DiLoCoOptions options = {});

  // Call it after each step of the (inner) optimizer. Returns whether the outer one has made a step: it does in each
  // step whose number, from 1, is a multiple of the period. The parameters are the same on all ranks then.
  bool step();

  // "diloco.step", and of each parameter <name> "diloco.<name>.last" and "diloco.<name>.momentum", the same on all
  // ranks after each outer step.
  std::vector<Parameter> state();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace DDP_ABI
}  // namespace ddp
