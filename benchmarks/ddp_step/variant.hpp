// One way to train a model with several ranks: gradients averaged as they are, by a hook that sends less, or with a
// sharded optimizer.
//
//   sync        DistributedDataParallel as it is, no optimizer; so are the hooks
//   bf16        gradients as bfloat16
//   fp16        the same with float16
//   power_sgd   PowerSGD of rank 1; power_sgd_2: of rank 2
//   top_k       the largest 1 % of the gradients
//   local_sgd   no gradients; parameters are averaged in each 8th step
//   diloco      the same with an outer step of DiLoCo
//   adamw       AdamW, all of it on each rank
//   zero1       AdamW, its state divided (ZeRO-1)
//   zero2       AdamW, divided with the gradients (ZeRO-2)
#pragma once

#include <ddp/ddp.hpp>

#include <optional>
#include <string>
#include <vector>

#include "benchmarks/ddp_step/model.hpp"

namespace ddp::benchmarks {

constexpr int kLocalSteps = 8;

// Of steps, after which the same collectives come again.
inline int period_of(const std::string& variant) {
  return variant == "local_sgd" || variant == "diloco" ? kLocalSteps : 1;
}

class Variant {
 public:
  // Collective. Throws std::invalid_argument for another name.
  Variant(const ProcessGroup& group, Model& model, const std::string& name);

  // Collective. The parameters are the same on all ranks afterwards, and whole.
  void step(Sync sync = Sync::on);

  const std::vector<float*>& gradients() const { return gradients_; }  // by parameter

 private:
  Model& model_;
  std::optional<ShardedOptimizer> optimizer_;
  std::optional<ParameterAverage> average_;
  std::optional<DiLoCo> diloco_;
  std::optional<DistributedDataParallel> engine_;
  std::vector<float*> gradients_;
};

}  // namespace ddp::benchmarks
