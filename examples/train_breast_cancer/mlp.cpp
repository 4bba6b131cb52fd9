#include "mlp.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

namespace train {
namespace {

// Uniform in [-limit, limit). The standard's engines give the same numbers everywhere; its distributions do not.
void fill_uniform(std::vector<float>& values, float limit, std::mt19937& random) {
  for (float& value : values) value = limit * (2 * (static_cast<float>(random() >> 8) / float{1 << 24}) - 1);
}

// The logits of one sample become probabilities. Returns -log of the one at `label`.
double softmax(float* logits, std::size_t count, std::size_t label) {
  const float largest = *std::max_element(logits, logits + count);
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += std::exp(logits[i] - largest);
  const double loss = std::log(static_cast<double>(sum)) + largest - logits[label];
  for (std::size_t i = 0; i < count; ++i) logits[i] = std::exp(logits[i] - largest) / sum;
  return loss;
}

}  // namespace

Mlp::Mlp(const std::vector<std::size_t>& widths, std::uint64_t seed) {
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    Layer layer{widths[i], widths[i + 1], std::vector<float>(widths[i] * widths[i + 1]),
                std::vector<float>(widths[i + 1])};
    // Keeps the variance of activations through ReLU. Source: He et al. 2015, "Delving deep into rectifiers".
    fill_uniform(layer.weight, std::sqrt(6.0F / static_cast<float>(layer.inputs)), random);
    layers_.push_back(std::move(layer));
  }
  activations_.resize(widths.size());
}

std::vector<ddp::Parameter> Mlp::parameters() {
  std::vector<ddp::Parameter> parameters;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const std::string name = "layer" + std::to_string(i + 1);
    const auto inputs = static_cast<std::int64_t>(layer.inputs);
    const auto outputs = static_cast<std::int64_t>(layer.outputs);
    parameters.push_back({name + ".weight", {outputs, inputs}, layer.weight});
    parameters.push_back({name + ".bias", {outputs}, layer.bias});
  }
  return parameters;
}

void Mlp::run_layers(const Samples& batch) {
  activations_[0] = batch.features;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const bool is_last = i + 1 == layers_.size();
    activations_[i + 1].resize(batch.size() * layer.outputs);
    for (std::size_t sample = 0; sample < batch.size(); ++sample) {
      const float* input = &activations_[i][sample * layer.inputs];
      float* output = &activations_[i + 1][sample * layer.outputs];
      for (std::size_t o = 0; o < layer.outputs; ++o) {
        float sum = layer.bias[o];
        for (std::size_t k = 0; k < layer.inputs; ++k) sum += layer.weight[o * layer.inputs + k] * input[k];
        output[o] = is_last ? sum : std::max(sum, 0.0F);
      }
    }
  }
}

double Mlp::forward(const Samples& batch) {
  run_layers(batch);
  const std::size_t classes = layers_.back().outputs;
  const auto scale = 1 / static_cast<float>(batch.size());
  logit_gradients_ = activations_.back();
  double loss = 0;
  for (std::size_t sample = 0; sample < batch.size(); ++sample) {
    const auto label = static_cast<std::size_t>(batch.labels[sample]);
    float* row = &logit_gradients_[sample * classes];
    loss += softmax(row, classes, label);
    row[label] -= 1;
    for (std::size_t i = 0; i < classes; ++i) row[i] *= scale;
  }
  return loss / static_cast<double>(batch.size());
}

void Mlp::backward(const std::vector<float*>& gradients, const std::function<void(std::size_t parameter)>& ready) {
  std::vector<float> output_gradients = logit_gradients_;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const Layer& layer = layers_[i];
    const std::size_t weight = 2 * i;
    const std::size_t bias = 2 * i + 1;
    std::vector<float> input_gradients(activations_[i].size());
    for (std::size_t sample = 0; sample * layer.outputs < output_gradients.size(); ++sample) {
      const float* input = &activations_[i][sample * layer.inputs];
      float* input_gradient = &input_gradients[sample * layer.inputs];
      for (std::size_t o = 0; o < layer.outputs; ++o) {
        const float gradient = output_gradients[sample * layer.outputs + o];
        gradients[bias][o] += gradient;
        for (std::size_t k = 0; k < layer.inputs; ++k) {
          gradients[weight][o * layer.inputs + k] += gradient * input[k];
          input_gradient[k] += gradient * layer.weight[o * layer.inputs + k];
        }
      }
    }
    ready(bias);
    ready(weight);
    // Through ReLU: where the input of this layer is 0, nothing came from below. (Layer 0's is the data; nobody asks.)
    for (std::size_t k = 0; k < input_gradients.size(); ++k) {
      if (activations_[i][k] <= 0) input_gradients[k] = 0;
    }
    output_gradients = std::move(input_gradients);
  }
}

double Mlp::accuracy(const Samples& samples) {
  run_layers(samples);
  const std::size_t classes = layers_.back().outputs;
  std::size_t right_count = 0;
  for (std::size_t sample = 0; sample < samples.size(); ++sample) {
    const float* logits = &activations_.back()[sample * classes];
    const auto best = std::max_element(logits, logits + classes) - logits;
    if (best == samples.labels[sample]) ++right_count;
  }
  return static_cast<double>(right_count) / static_cast<double>(samples.size());
}

}  // namespace train
