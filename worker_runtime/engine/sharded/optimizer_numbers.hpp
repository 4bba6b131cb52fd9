// What an optimizer computes with in one step of a parameter.
//
// Pure; any thread.
#pragma once

#include <cmath>
#include <cstddef>

#include "ddp/sharded_optimizer.hpp"
#include "worker_runtime/tensor/optimizer_step.hpp"

namespace ddp::gradient_engine {

// scale: what the gradient is multiplied by first. step: of the parameter, from 1 on.
inline tensor::AdamWNumbers numbers_of(const AdamWOptions& options, std::size_t step, float scale) {
  const auto t = static_cast<double>(step);
  return {.scale = scale,
          .kept = static_cast<float>(1 - options.learning_rate * options.weight_decay),
          .new_part = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .square_part = static_cast<float>(1 - options.beta2),
          .rate = static_cast<float>(options.learning_rate / (1 - std::pow(options.beta1, t))),
          .correction = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, t))),
          .epsilon = static_cast<float>(options.epsilon)};
}

inline tensor::SgdNumbers numbers_of(const SgdOptions& options, std::size_t step, float scale) {
  const auto momentum = static_cast<float>(options.momentum);
  return {.scale = scale,
          .rate = static_cast<float>(options.learning_rate),
          .decay = static_cast<float>(options.weight_decay),
          .momentum = momentum,
          .old_part = step == 1 ? 0 : momentum,
          .nesterov = options.nesterov};
}

}  // namespace ddp::gradient_engine
