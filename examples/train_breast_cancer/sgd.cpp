#include "sgd.hpp"

namespace train {

Sgd::Sgd(const std::vector<ddp::Parameter>& parameters, const SgdOptions& options)
    : parameters_(parameters), options_(options) {
  for (const ddp::Parameter& parameter : parameters_) velocities_.emplace_back(parameter.values.count);
}

void Sgd::step(const std::vector<float*>& gradients) {
  const auto rate = static_cast<float>(options_.learning_rate);
  const auto momentum = static_cast<float>(options_.momentum);
  const auto decay = static_cast<float>(options_.weight_decay);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    auto* values = static_cast<float*>(parameters_[p].values.data);
    std::vector<float>& velocity = velocities_[p];
    for (std::size_t i = 0; i < velocity.size(); ++i) {
      velocity[i] = momentum * velocity[i] + gradients[p][i] + decay * values[i];
      values[i] -= rate * velocity[i];
    }
  }
}

}  // namespace train
