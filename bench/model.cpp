#include "bench/model.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "bench/kernels.hpp"

namespace ddp::bench {
namespace {

constexpr std::size_t kLayersAtLeast = 10;  // of a large model, so that communication and computing can overlap
constexpr std::size_t kWidthMax = 1024;     // 4 MiB of gradients for each layer
constexpr std::size_t kWidthUnit = 4;
constexpr float kRate = 1e-4F;

std::size_t width_for(std::size_t parameters) {
  const double square = static_cast<double>(parameters) / static_cast<double>(kLayersAtLeast);
  const auto units = static_cast<std::size_t>(std::sqrt(square)) / kWidthUnit;
  return std::clamp(units * kWidthUnit, kWidthUnit, kWidthMax);
}

// Numbers from -1 to 1. Source: splitmix64, Sebastiano Vigna, https://prng.di.unimi.it/splitmix64.c.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  float next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<float>((z ^ (z >> 31)) >> 40) / static_cast<float>(1 << 23) - 1;
  }

 private:
  std::uint64_t state_;
};

}  // namespace

Model::Model(std::size_t parameters, std::size_t batch, std::uint64_t seed)
    : width_(width_for(parameters)), batch_(batch) {
  const double layers = static_cast<double>(parameters) / static_cast<double>(width_ * width_);
  weights_.resize(std::max<std::size_t>(1, static_cast<std::size_t>(layers + 0.5)));
  Numbers numbers(1);
  const float scale = std::sqrt(3 / static_cast<float>(width_));  // what a layer answers is as large as its input
  for (auto& layer : weights_) {
    layer.resize(width_ * width_);
    for (float& weight : layer) weight = scale * numbers.next();
  }
  activations_.assign(weights_.size() + 1, std::vector<float>(batch_ * width_));
  Numbers samples(seed);
  for (float& value : activations_.front()) value = samples.next();
}

std::vector<Parameter> Model::parameters() {
  std::vector<Parameter> result;
  const auto width = static_cast<std::int64_t>(width_);
  for (std::size_t layer = 0; layer < weights_.size(); ++layer) {
    result.push_back({"layer_" + std::to_string(layer), {width, width}, weights_[layer]});
  }
  return result;
}

double Model::forward() {
  for (std::size_t layer = 0; layer < weights_.size(); ++layer) {
    layer_forward({batch_, width_}, activations_[layer].data(), weights_[layer].data(), activations_[layer + 1].data());
  }
  double squares = 0;
  for (const float value : activations_.back()) squares += static_cast<double>(value) * value;
  return squares / (2 * static_cast<double>(batch_));
}

void Model::backward(const std::vector<float*>& gradients, const std::function<void(std::size_t layer)>& ready) {
  std::vector<float> of_outputs = activations_.back();
  for (float& value : of_outputs) value /= static_cast<float>(batch_);
  std::vector<float> of_inputs(of_outputs.size());
  for (std::size_t layer = weights_.size(); layer-- > 0;) {
    layer_weight_gradients({batch_, width_}, activations_[layer].data(), of_outputs.data(), gradients[layer]);
    ready(layer);
    if (layer == 0) return;
    layer_input_gradients({batch_, width_}, of_outputs.data(), weights_[layer].data(), of_inputs.data());
    std::swap(of_outputs, of_inputs);
  }
}

void Model::update(const std::vector<float*>& gradients) {
  for (std::size_t layer = 0; layer < weights_.size(); ++layer) {
    const float* const gradient = gradients[layer];
    for (std::size_t i = 0; i < weights_[layer].size(); ++i) weights_[layer][i] -= kRate * gradient[i];
  }
}

}  // namespace ddp::bench
