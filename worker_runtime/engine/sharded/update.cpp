// Compiled with -O3, which makes vector code of these loops.
#include "worker_runtime/engine/sharded/update.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "worker_runtime/tensor/convert.hpp"

namespace ddp::gradient_engine {
namespace {

constexpr std::size_t kBlock = 2048;  // gradients that are widened at a time; they fit into a core's first cache

void update_each(const AdamWOptions& options, std::size_t step, float scale, float* __restrict__ p,
                 const float* __restrict__ g, float* __restrict__ m, float* __restrict__ v, std::size_t count) {
  const auto t = static_cast<double>(step);
  const auto kept = static_cast<float>(1 - options.learning_rate * options.weight_decay);
  const auto new_part = static_cast<float>(1 - options.beta1);
  const auto beta2 = static_cast<float>(options.beta2);
  const auto square_part = static_cast<float>(1 - options.beta2);
  const auto rate = static_cast<float>(options.learning_rate / (1 - std::pow(options.beta1, t)));
  const auto correction = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, t)));
  const auto epsilon = static_cast<float>(options.epsilon);
  for (std::size_t i = 0; i < count; ++i) {
    const float gradient = g[i] * scale;
    m[i] += new_part * (gradient - m[i]);
    v[i] = beta2 * v[i] + square_part * gradient * gradient;
    p[i] = p[i] * kept - rate * m[i] / (std::sqrt(v[i]) / correction + epsilon);
  }
}

void update_each(const SgdOptions& options, std::size_t step, float scale, float* __restrict__ p,
                 const float* __restrict__ g, float* __restrict__ m, std::size_t count) {
  const auto rate = static_cast<float>(options.learning_rate);
  const auto decay = static_cast<float>(options.weight_decay);
  if (m == nullptr) {
    for (std::size_t i = 0; i < count; ++i) p[i] -= rate * (g[i] * scale + decay * p[i]);
    return;
  }
  const auto momentum = static_cast<float>(options.momentum);
  const float old_part = step == 1 ? 0 : momentum;
  if (options.nesterov) {
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

void update(const std::variant<AdamWOptions, SgdOptions>& options, std::size_t step, float scale,
            const Elements& elements) {
  const auto [p, g, m, v, count] = elements;
  if (const auto* const adamw = std::get_if<AdamWOptions>(&options)) {
    return update_each(*adamw, step, scale, p, g, m, v, count);
  }
  update_each(std::get<SgdOptions>(options), step, scale, p, g, m, count);
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
