// Compiled with -O3, which makes vector code of these loops.
#include "worker_runtime/tensor/optimizer_step.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "worker_runtime/tensor/convert.hpp"

namespace ddp::tensor {
namespace {

constexpr std::size_t kBlock = 2048;  // gradients that are widened at a time; they fit into a core's first cache

void update_each(const AdamWNumbers& numbers, float* __restrict__ p, const float* __restrict__ g, float* __restrict__ m,
                 float* __restrict__ v, std::size_t count) {
  const auto [scale, kept, new_part, beta2, square_part, rate, correction, epsilon] = numbers;
  for (std::size_t i = 0; i < count; ++i) {
    const float gradient = g[i] * scale;
    m[i] += new_part * (gradient - m[i]);
    v[i] = beta2 * v[i] + square_part * gradient * gradient;
    p[i] = p[i] * kept - rate * m[i] / (std::sqrt(v[i]) / correction + epsilon);
  }
}

void update_each(const SgdNumbers& numbers, float* __restrict__ p, const float* __restrict__ g, float* __restrict__ m,
                 float*, std::size_t count) {
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

template <class Numbers>
void update_piece(const OptimizedPiece& piece, const Numbers& numbers) {
  if (piece.type == DataType::float32) {
    return update_each(numbers, piece.p, static_cast<const float*>(piece.g), piece.m, piece.v, piece.count);
  }
  std::array<float, kBlock> gradients;
  const auto from = [](float* values, std::size_t first) { return values == nullptr ? nullptr : values + first; };
  for (std::size_t first = 0; first < piece.count; first += kBlock) {
    const std::size_t count = std::min(kBlock, piece.count - first);
    float* const masters = piece.p + first;
    widen(static_cast<const std::uint16_t*>(piece.g) + first, gradients.data(), count, piece.type);
    update_each(numbers, masters, gradients.data(), from(piece.m, first), from(piece.v, first), count);
    narrow(masters, static_cast<std::uint16_t*>(piece.rounded) + first, count, piece.type);
  }
}

}  // namespace

void update(const OptimizedPiece& piece, const AdamWNumbers& numbers) { update_piece(piece, numbers); }
void update(const OptimizedPiece& piece, const SgdNumbers& numbers) { update_piece(piece, numbers); }

}  // namespace ddp::tensor
