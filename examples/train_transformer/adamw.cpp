#include "adamw.hpp"

#include <cmath>
#include <utility>

namespace transformer {

AdamW::AdamW(std::vector<ddp::Parameter> parameters, const ddp::AdamWOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  for (const ddp::Parameter& parameter : parameters_) {
    means_.emplace_back(parameter.values.count);
    squares_.emplace_back(parameter.values.count);
  }
}

// Source: the formulas in ddp/sharded_optimizer.hpp.
void AdamW::step(const std::vector<float*>& gradients) {
  ++steps_;
  const auto t = static_cast<double>(steps_);
  const auto rate = static_cast<float>(options_.learning_rate / (1 - std::pow(options_.beta1, t)));
  const auto root = static_cast<float>(std::sqrt(1 - std::pow(options_.beta2, t)));
  const auto decay = static_cast<float>(1 - options_.learning_rate * options_.weight_decay);
  const auto beta1 = static_cast<float>(options_.beta1);
  const auto beta2 = static_cast<float>(options_.beta2);
  const auto epsilon = static_cast<float>(options_.epsilon);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    auto* const values = static_cast<float*>(parameters_[p].values.data);
    float* const mean = means_[p].data();
    float* const square = squares_[p].data();
    for (std::size_t i = 0; i < means_[p].size(); ++i) {
      const float gradient = gradients[p][i];
      mean[i] += (1 - beta1) * (gradient - mean[i]);
      square[i] = beta2 * square[i] + (1 - beta2) * gradient * gradient;
      values[i] = values[i] * decay - rate * mean[i] / (std::sqrt(square[i]) / root + epsilon);
    }
  }
}

std::vector<ddp::Parameter> AdamW::state() {
  std::vector<ddp::Parameter> tensors = {{"adamw.steps", {}, ddp::MemoryRange(&steps_, 1)}};
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    tensors.push_back({"adamw." + parameters_[p].name + ".mean", parameters_[p].shape, means_[p]});
    tensors.push_back({"adamw." + parameters_[p].name + ".square", parameters_[p].shape, squares_[p]});
  }
  return tensors;
}

}  // namespace transformer
