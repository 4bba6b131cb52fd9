#include "bench/kernels.hpp"

#include <algorithm>

namespace ddp::bench {
namespace {

constexpr std::size_t kTile = 256;  // columns at once, so that what is added to stays in the first-level cache

// Calls `work(begin, end)` for each part of the columns.
template <class Work>
void for_each_tile(std::size_t width, const Work& work) {
  for (std::size_t begin = 0; begin < width; begin += kTile) work(begin, std::min(begin + kTile, width));
}

}  // namespace

void layer_forward(LayerShape shape, const float* inputs, const float* weights, float* outputs) {
  const std::size_t width = shape.width;
  std::fill_n(outputs, shape.batch * width, 0.0F);
  for_each_tile(width, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = 0; i < width; i += 4) {
      const float* const row0 = weights + i * width;
      const float* const row1 = row0 + width;
      const float* const row2 = row1 + width;
      const float* const row3 = row2 + width;
      for (std::size_t sample = 0; sample < shape.batch; ++sample) {
        const float* const x = inputs + sample * width + i;
        const float x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
        float* const __restrict out = outputs + sample * width;
        for (std::size_t o = begin; o < end; ++o) out[o] += x0 * row0[o] + x1 * row1[o] + x2 * row2[o] + x3 * row3[o];
      }
    }
  });
}

void layer_weight_gradients(LayerShape shape, const float* inputs, const float* output_gradients,
                            float* weight_gradients) {
  const std::size_t width = shape.width;
  for (std::size_t i = 0; i < width; ++i) {
    float* const __restrict row = weight_gradients + i * width;
    std::fill_n(row, width, 0.0F);
    for_each_tile(width, [&](std::size_t begin, std::size_t end) {
      std::size_t sample = 0;
      for (; sample + 4 <= shape.batch; sample += 4) {
        const float* const x = inputs + sample * width + i;
        const float x0 = x[0], x1 = x[width], x2 = x[2 * width], x3 = x[3 * width];
        const float* const g0 = output_gradients + sample * width;
        const float* const g1 = g0 + width;
        const float* const g2 = g1 + width;
        const float* const g3 = g2 + width;
        for (std::size_t o = begin; o < end; ++o) row[o] += x0 * g0[o] + x1 * g1[o] + x2 * g2[o] + x3 * g3[o];
      }
      for (; sample < shape.batch; ++sample) {
        const float x = inputs[sample * width + i];
        const float* const g = output_gradients + sample * width;
        for (std::size_t o = begin; o < end; ++o) row[o] += x * g[o];
      }
    });
  }
}

void layer_input_gradients(LayerShape shape, const float* output_gradients, const float* weights,
                           float* input_gradients) {
  const std::size_t width = shape.width;
  std::fill_n(input_gradients, shape.batch * width, 0.0F);
  for_each_tile(width, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = 0; i < width; ++i) {
      const float* const row = weights + i * width;
      for (std::size_t sample = 0; sample < shape.batch; ++sample) {
        const float* const gradients = output_gradients + sample * width;
        float sum = 0;  // this file may be compiled to add in any order
        for (std::size_t o = begin; o < end; ++o) sum += row[o] * gradients[o];
        input_gradients[sample * width + i] += sum;
      }
    }
  });
}

}  // namespace ddp::bench
