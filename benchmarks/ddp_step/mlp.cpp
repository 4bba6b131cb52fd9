#include "benchmarks/ddp_step/mlp.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>

namespace ddp::benchmarks {

namespace {

void fill(std::vector<float>& values, float range, std::mt19937& random) {
  std::uniform_real_distribution<float> draw(-range, range);
  for (float& value : values) value = draw(random);
}

blasint as_int(std::size_t size) { return static_cast<blasint>(size); }

}  // namespace

Mlp::Mlp(const Sizes& sizes, unsigned seed)
    : sizes_(sizes),
      weights_(sizes.layers, std::vector<float>(sizes.width * sizes.width)),
      biases_(sizes.layers, std::vector<float>(sizes.width)),
      activations_(sizes.layers + 1, std::vector<float>(sizes.batch * sizes.width)),
      targets_(sizes.batch * sizes.width),
      error_(targets_.size()),
      error_below_(targets_.size()) {
  ::openblas_set_num_threads(1);
  std::mt19937 random(seed);
  const float range = 1 / std::sqrt(static_cast<float>(sizes.width));
  for (auto& layer : weights_) fill(layer, range, random);
  fill(activations_[0], 1, random);
  fill(targets_, 1, random);
}

void Mlp::forward() {
  const auto batch = as_int(sizes_.batch), width = as_int(sizes_.width);
  for (std::size_t layer = 0; layer < sizes_.layers; ++layer) {
    auto& out = activations_[layer + 1];
    for (std::size_t i = 0; i < sizes_.batch; ++i) {
      std::copy(biases_[layer].begin(), biases_[layer].end(),
                out.begin() + static_cast<std::ptrdiff_t>(i * sizes_.width));
    }
    ::cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, batch, width, width, 1, activations_[layer].data(), width,
                  weights_[layer].data(), width, 1, out.data(), width);
    if (layer + 1 == sizes_.layers) break;
    for (float& value : out) value = std::max(value, 0.0F);
  }
}

void Mlp::backward(const std::vector<float*>& gradients, const std::function<void(std::size_t)>& ready) {
  const auto batch = as_int(sizes_.batch), width = as_int(sizes_.width);
  const auto& out = activations_.back();
  for (std::size_t i = 0; i < error_.size(); ++i) error_[i] = (out[i] - targets_[i]) / static_cast<float>(sizes_.batch);
  for (std::size_t layer = sizes_.layers; layer-- > 0;) {
    const auto& in = activations_[layer];
    const std::size_t weights = 2 * layer, biases = weights + 1;
    ::cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, width, width, batch, 1, error_.data(), width, in.data(),
                  width, 0, gradients[weights], width);
    std::fill_n(gradients[biases], sizes_.width, 0.0F);
    for (std::size_t i = 0; i < sizes_.batch; ++i) {
      for (std::size_t j = 0; j < sizes_.width; ++j) gradients[biases][j] += error_[i * sizes_.width + j];
    }
    ready(biases);
    ready(weights);
    if (layer == 0) return;
    ::cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, batch, width, width, 1, error_.data(), width,
                  weights_[layer].data(), width, 0, error_below_.data(), width);
    for (std::size_t i = 0; i < error_.size(); ++i) error_[i] = in[i] > 0 ? error_below_[i] : 0;
  }
}

void Mlp::step(const std::vector<float*>& gradients, const std::function<void(std::size_t)>& ready) {
  forward();
  backward(gradients, ready);
}

std::vector<Parameter> Mlp::parameters() {
  const auto width = static_cast<std::int64_t>(sizes_.width);
  std::vector<Parameter> out;
  for (std::size_t layer = 0; layer < sizes_.layers; ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    out.push_back({name + ".weight", {width, width}, weights_[layer]});
    out.push_back({name + ".bias", {width}, biases_[layer]});
  }
  return out;
}

}  // namespace ddp::benchmarks
