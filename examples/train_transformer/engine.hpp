// How ranks combine what they learn: the gradient engine and the optimizer, as the flags --zero2, --bf16, --powersgd
// and --local-sgd ask for them.
#pragma once

#include <ddp/checkpointer.hpp>
#include <ddp/communication_hook.hpp>
#include <ddp/distributed_data_parallel.hpp>
#include <ddp/local_sgd.hpp>
#include <ddp/parameter.hpp>
#include <ddp/process_group.hpp>
#include <ddp/sharded_optimizer.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "adamw.hpp"
#include "options.hpp"

namespace transformer {

ddp::AdamWOptions adamw_options(const Options& options);

class Engine {
 public:
  // Collective. The parameters become those of rank 0. `optimizer` is that of all flags but --zero2.
  Engine(ddp::ProcessGroup world, std::vector<ddp::Parameter> parameters, AdamW& optimizer, const Options& options);

  // Parameters, and the state of optimizer and hook.
  void add_to(ddp::Checkpointer& checkpoints);

  // Collective, before forward.
  ddp::DistributedDataParallel::Step begin_step() { return model_->begin_step(); }

  // Before forward reads this parameter: with --zero2 it may still be on its way from the rank that updated it.
  void wait(std::size_t parameter) {
    if (sharded_) sharded_->wait(parameter);
  }

  // Where backward adds gradients, by parameter.
  const std::vector<float*>& gradients() const { return gradients_; }

  // Collective, after finish(): the optimizer's step. Whether the parameters are the same on all ranks afterwards.
  bool update();

  // Collective, at the end: the parameters are the same on all ranks afterwards.
  void end();

 private:
  ddp::ProcessGroup world_;
  std::vector<ddp::Parameter> parameters_;
  AdamW& optimizer_;
  std::shared_ptr<ddp::CommunicationHook> hook_;  // null: gradients are averaged as they are, or divided
  std::optional<ddp::ShardedOptimizer> sharded_;
  std::optional<ddp::ParameterAverage> average_;
  std::optional<ddp::DistributedDataParallel> model_;
  std::vector<float*> gradients_;
  bool is_same_on_all_ranks_ = true;
};

}  // namespace transformer
