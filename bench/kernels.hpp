// Matrix products of a layer without a library, in one thread. Pure.
//
// Matrices are row-major: inputs [batch][width], weights [width][width] by input and output. No pointers overlap.
#pragma once

#include <cstddef>

namespace ddp::bench {

struct LayerShape {
  std::size_t batch = 1;
  std::size_t width = 16;  // a multiple of 4
};

// outputs = inputs * weights
void layer_forward(LayerShape shape, const float* inputs, const float* weights, float* outputs);

// weight_gradients = transposed inputs * output_gradients
void layer_weight_gradients(LayerShape shape, const float* inputs, const float* output_gradients,
                            float* weight_gradients);

// input_gradients = output_gradients * transposed weights
void layer_input_gradients(LayerShape shape, const float* output_gradients, const float* weights,
                           float* input_gradients);

}  // namespace ddp::bench
