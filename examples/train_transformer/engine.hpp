// How ranks combine what they learn: the gradient engine and the optimizer, as the flags --zero2, --bf16, --powersgd
// and --local-sgd ask for them.
#pragma once

#include <ddp/distributed_data_parallel.hpp>
#include <ddp/local_sgd.hpp>
#include <ddp/parameter.hpp>
#include <ddp/process_group.hpp>
#include <ddp/sharded_optimizer.hpp>

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

  // Collective, before forward.
  ddp::DistributedDataParallel::Step begin_step();

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
  std::optional<ddp::ShardedOptimizer> sharded_;
  std::optional<ddp::ParameterAverage> average_;
  std::optional<ddp::DistributedDataParallel> model_;
  std::vector<float*> gradients_;
  bool is_same_on_all_ranks_ = true;
};

}  // namespace transformer
