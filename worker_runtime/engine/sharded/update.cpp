// Compiled with -O3, which makes vector code of these loops.
#include "worker_runtime/engine/sharded/update.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "worker_runtime/tensor/convert.hpp"

namespace ddp::gradient_engine {
namespace {

constexpr std::size_t kBlock = 2048;  // gradients that are widened at a time; they fit into a core's first cache

void update_each(const tensor::AdamWNumbers& numbers, float* __restrict__ p, const float* __restrict__ g,
                 float* __restrict__ m, float* __restrict__ v, std::size_t count) {
  const auto [scale, kept, new_part, beta2, square_part, rate, correction, epsilon] = numbers;
  for (std::size_t i = 0; i < count; ++i) {
    const float gradient = g[i] * scale;
    m[i] += new_part * (gradient - m[i]);
    v[i] = beta2 * v[i] + square_part * gradient * gradient;
    p[i] = p[i] * kept - rate * m[i] / (std::sqrt(v[i]) / correction + epsilon);
  }
}

void update_each(const tensor::SgdNumbers& numbers, float* __restrict__ p, const float* __restrict__ g,
                 float* __restrict__ m, std::size_t count) {
  const auto [scale, rate, decay, momentum, old_part, nesterov] = numbers;
  if (m == nullptr) {
    for (std::size_t i = 0; i < count; ++i) p[i] -= rate * (g[i] * scale + decay * p[i]);
    return;
  }
  if (nesterov) {
    for (std::size_t i = 0; i < count; ++i) {
      const float gradient = g[i] * scale + decay * p[i];
      m[i] = old_part * m[i] + gradient;
      p[i] -= rate * (gradient + momentum * m[i]);
    }
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      m[i] = old_part * m[i] + (g[i] * scale + decay * p[i]);
      p[i] -= rate * m[i];
    }
  }
}

}  // namespace

tensor::AdamWNumbers numbers_of(const AdamWOptions& options, std::size_t step, float scale) {
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

tensor::SgdNumbers numbers_of(const SgdOptions& options, std::size_t step, float scale) {
  const auto momentum = static_cast<float>(options.momentum);
  return {.scale = scale,
          .rate = static_cast<float>(options.learning_rate),
          .decay = static_cast<float>(options.weight_decay),
          .momentum = momentum,
          .old_part = step == 1 ? 0 : momentum,
          .nesterov = options.nesterov};
}

void update(const std::variant<AdamWOptions, SgdOptions>& options, std::size_t step, float scale,
            const Elements& elements) {
  const auto [p, g, m, v, count] = elements;
  if (const auto* const adamw = std::get_if<AdamWOptions>(&options)) {
    return update_each(numbers_of(*adamw, step, scale), p, g, m, v, count);
  }
  update_each(numbers_of(std::get<SgdOptions>(options), step, scale), p, g, m, count);
}

void update(const std::variant<AdamWOptions, SgdOptions>& options, std::size_t step, float scale,
            const Elements& elements, const HalfElements& half) {
  std::array<float, kBlock> gradients;
  const auto from = [](float* values, std::size_t first) { return values == nullptr ? nullptr : values + first; };
  for (std::size_t first = 0; first < elements.count; first += kBlock) {
    const std::size_t count = std::min(kBlock, elements.count - first);
    float* const masters = elements.p + first;
    tensor::widen(half.g + first, gradients.data(), count, half.type);
    update(options, step, scale, {masters, gradients.data(), from(elements.m, first), from(elements.v, first), count});
    tensor::narrow(masters, half.p + first, count, half.type);
  }
}

}  // namespace ddp::gradient_engine
