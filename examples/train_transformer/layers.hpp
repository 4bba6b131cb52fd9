// The layers of the transformer that look at each row, which is one character of one sample, by itself.
//
// Each backward() adds to the gradients of parameters, and says of each when it is complete, the last one first.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "matrix.hpp"
#include "tensor.hpp"

namespace transformer {

// output = input * transpose(weight) + bias
class Linear {
 public:
  // deviation: of the first weights. Biases are 0 at first.
  Linear(const std::string& name, std::size_t inputs, std::size_t outputs, float deviation, std::mt19937& random);

  void forward(const Matrix& input, Matrix& output) const;

  // input: that of forward().
  void backward(const Matrix& input, const Matrix& output_gradient, Matrix& input_gradient,
                const GradientSink& sink) const;

  std::vector<Tensor*> tensors() { return {&weight_, &bias_}; }

 private:
  ConstView weight() const;

  Tensor weight_;  // [outputs, inputs]
  Tensor bias_;    // [outputs]
};

// Brings each row to mean 0 and standard deviation 1, then multiplies by `weight` and adds `bias`.
class LayerNorm {
 public:
  LayerNorm(const std::string& name, std::size_t width);

  // Keeps what backward() needs.
  void forward(const Matrix& input, Matrix& output);

  // Adds to input_gradient, which already has the gradient that goes past the layer.
  void backward(const Matrix& output_gradient, Matrix& input_gradient, const GradientSink& sink) const;

  std::vector<Tensor*> tensors() { return {&weight_, &bias_}; }

 private:
  Tensor weight_;
  Tensor bias_;
  Matrix normalised_;           // the input with mean 0 and standard deviation 1
  std::vector<float> inverse_;  // by row: 1 / standard deviation
};

// Gaussian error linear unit, in the approximation with tanh. Source: Hendrycks and Gimpel, arXiv 1606.08415.
void gelu(const Matrix& input, Matrix& output);

// `gradient` is that of the output, and becomes that of the input.
void gelu_backward(const Matrix& input, Matrix& gradient);

}  // namespace transformer
