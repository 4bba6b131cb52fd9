// The model that both sides of recovery_torchft train: 512-1024-512 with a ReLU, a batch of 16, mean squared error,
// SGD. In plain loops, which a compiler makes vector code of.
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

class Mlp {
 public:
  static constexpr std::size_t kBatch = 16, kWidth = 512, kHidden = 1024;
  static constexpr std::size_t kParameters = 2 * kWidth * kHidden + kHidden + kWidth;

  Mlp() {
    std::mt19937 draw(0);
    const auto fill = [&](std::vector<float>& values, float scale) {
      for (auto& value : values) value = scale * (static_cast<float>(draw()) / 4294967296.0F - 0.5F);
    };
    fill(parameters, 0.08F);
    fill(input_, 2);
    fill(target_, 2);
  }

  // Of the batch that every step has.
  void compute_gradients(float* gradients) {
    const float *w1 = parameters.data(), *b1 = w1 + kWidth * kHidden, *w2 = b1 + kHidden, *b2 = w2 + kHidden * kWidth;
    float *g1 = gradients, *h1 = g1 + kWidth * kHidden, *g2 = h1 + kHidden, *h2 = g2 + kHidden * kWidth;
    forward(input_.data(), w1, b1, hidden_.data(), kWidth, kHidden);
    for (auto& value : hidden_) value = std::max(value, 0.0F);
    forward(hidden_.data(), w2, b2, output_.data(), kHidden, kWidth);
    for (std::size_t i = 0; i < output_.size(); ++i)
      output_[i] = 2 * (output_[i] - target_[i]) / static_cast<float>(output_.size());
    backward_to_weights(hidden_.data(), output_.data(), g2, h2, kHidden, kWidth);
    for (std::size_t b = 0; b < kBatch; ++b)
      for (std::size_t i = 0; i < kHidden; ++i) {
        float sum = 0;
        if (hidden_[b * kHidden + i] > 0) sum = dot(w2 + i * kWidth, output_.data() + b * kWidth, kWidth);
        to_hidden_[b * kHidden + i] = sum;
      }
    backward_to_weights(input_.data(), to_hidden_.data(), g1, h1, kWidth, kHidden);
  }

  void step(const float* gradients) {
    for (std::size_t i = 0; i < kParameters; ++i) parameters[i] -= 0.01F * gradients[i];
  }

  std::vector<float> parameters = std::vector<float>(kParameters);  // of each layer [in][out], then its bias

 private:
  static void forward(const float* in, const float* weights, const float* bias, float* out, std::size_t ins,
                      std::size_t outs) {
    for (std::size_t b = 0; b < kBatch; ++b) std::copy(bias, bias + outs, out + b * outs);
    for (std::size_t i = 0; i < ins; ++i)  // a row of weights serves the whole batch while it is in the cache
      for (std::size_t b = 0; b < kBatch; ++b) {
        const float x = in[b * ins + i];
        for (std::size_t o = 0; o < outs; ++o) out[b * outs + o] += x * weights[i * outs + o];
      }
  }

  static void backward_to_weights(const float* in, const float* to_out, float* weights, float* bias, std::size_t ins,
                                  std::size_t outs) {
    std::fill(weights, weights + ins * outs, 0.0F);
    std::fill(bias, bias + outs, 0.0F);
    for (std::size_t i = 0; i < ins; ++i)
      for (std::size_t b = 0; b < kBatch; ++b) {
        const float x = in[b * ins + i];
        for (std::size_t o = 0; o < outs; ++o) weights[i * outs + o] += x * to_out[b * outs + o];
      }
    for (std::size_t b = 0; b < kBatch; ++b)
      for (std::size_t o = 0; o < outs; ++o) bias[o] += to_out[b * outs + o];
  }

  // In eight sums, so that it can be vector code.
  static float dot(const float* a, const float* b, std::size_t count) {
    float sums[8] = {};
    for (std::size_t i = 0; i < count; i += 8)
      for (std::size_t lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
    float sum = 0;
    for (const float one : sums) sum += one;
    return sum;
  }

  std::vector<float> input_ = std::vector<float>(kBatch * kWidth), target_ = std::vector<float>(kBatch * kWidth);
  std::vector<float> hidden_ = std::vector<float>(kBatch * kHidden), to_hidden_ = std::vector<float>(kBatch * kHidden);
  std::vector<float> output_ = std::vector<float>(kBatch * kWidth);
};
