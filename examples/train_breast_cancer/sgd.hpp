// Stochastic gradient descent with momentum and weight decay.
//
// Every rank keeps one of its own: the same gradients go in on all ranks, so the same parameters come out.
#pragma once

#include <ddp/distributed_data_parallel.hpp>

#include <vector>

namespace train {

struct SgdOptions {
  double learning_rate = 0.02;
  double momentum = 0.9;
  double weight_decay = 0.03;  // much, because 455 samples are few
};

class Sgd {
 public:
  Sgd(const std::vector<ddp::Parameter>& parameters, const SgdOptions& options);

  // Moves the parameters against gradients[p], which lie where those of parameter p do.
  void step(const std::vector<float*>& gradients);

  // One vector for each parameter; part of a checkpoint.
  std::vector<std::vector<float>>& velocities() { return velocities_; }

 private:
  std::vector<ddp::Parameter> parameters_;
  SgdOptions options_;
  std::vector<std::vector<float>> velocities_;
};

}  // namespace train
