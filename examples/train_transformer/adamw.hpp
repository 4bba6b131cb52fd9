// AdamW, whose whole state each rank keeps: the same gradients go in on all ranks, so the same parameters come out.
// (ddp::ShardedOptimizer divides the state; --zero2 uses that.)
#pragma once

#include <ddp/parameter.hpp>
#include <ddp/sharded_optimizer.hpp>

#include <cstdint>
#include <vector>

namespace transformer {

class AdamW {
 public:
  AdamW(std::vector<ddp::Parameter> parameters, const ddp::AdamWOptions& options);

  // gradients[p] points at those of parameter p.
  void step(const std::vector<float*>& gradients);

  // For a checkpoint. The memory stays at its place.
  std::vector<ddp::Parameter> state();

 private:
  std::vector<ddp::Parameter> parameters_;
  ddp::AdamWOptions options_;
  std::int64_t steps_ = 0;
  std::vector<std::vector<float>> means_;    // by parameter: the running mean of the gradient
  std::vector<std::vector<float>> squares_;  // and of its square
};

}  // namespace transformer
