#include "layers.hpp"

#include <algorithm>
#include <cmath>

namespace transformer {
namespace {

constexpr float kEpsilon = 1e-5F;             // keeps rows that never change from a division by 0
constexpr float kGeluFactor = 0.7978845608F;  // sqrt(2 / pi)
constexpr float kGeluCubicFactor = 0.044715F;

std::int64_t length(std::size_t size) { return static_cast<std::int64_t>(size); }

// tanh by way of exp, which takes a quarter of the time of std::tanh.
float gelu_tanh(float x) { return 1 - 2 / (std::exp(2 * kGeluFactor * (x + kGeluCubicFactor * x * x * x)) + 1); }

}  // namespace

Linear::Linear(const std::string& name, std::size_t inputs, std::size_t outputs, float deviation, std::mt19937& random)
    : weight_(random_tensor(name + ".weight", {length(outputs), length(inputs)}, deviation, random)),
      bias_(constant_tensor(name + ".bias", {length(outputs)}, 0)) {}

ConstView Linear::weight() const {
  const std::size_t outputs = bias_.values.size();
  const std::size_t inputs = weight_.values.size() / outputs;
  return {weight_.values.data(), outputs, inputs, inputs};
}

void Linear::forward(const Matrix& input, Matrix& output) const {
  output.resize(input.rows(), weight().rows);
  for (std::size_t row = 0; row < output.rows(); ++row)
    std::copy(bias_.values.begin(), bias_.values.end(), output.row(row));
  multiply(input.view(), transposed(weight()), output.view(), 1, Into::add);
}

void Linear::backward(const Matrix& input, const Matrix& output_gradient, Matrix& input_gradient,
                      const GradientSink& sink) const {
  float* const bias_gradient = sink.of(bias_);
  for (std::size_t row = 0; row < output_gradient.rows(); ++row) {
    const float* const gradient = output_gradient.row(row);
    for (std::size_t i = 0; i < output_gradient.columns(); ++i) bias_gradient[i] += gradient[i];
  }
  sink.ready(bias_);
  const View weight_gradient = {sink.of(weight_), weight().rows, weight().columns, weight().stride};
  multiply(transposed(output_gradient.view()), input.view(), weight_gradient, 1, Into::add);
  sink.ready(weight_);
  input_gradient.resize(input.rows(), input.columns());
  multiply(output_gradient.view(), weight(), input_gradient.view());
}

LayerNorm::LayerNorm(const std::string& name, std::size_t width)
    : weight_(constant_tensor(name + ".weight", {length(width)}, 1)),
      bias_(constant_tensor(name + ".bias", {length(width)}, 0)) {}

void LayerNorm::forward(const Matrix& input, Matrix& output) {
  const std::size_t width = input.columns();
  output.resize(input.rows(), width);
  normalised_.resize(input.rows(), width);
  inverse_.resize(input.rows());
  for (std::size_t row = 0; row < input.rows(); ++row) {
    const float* const x = input.row(row);
    float sum = 0;
    for (std::size_t i = 0; i < width; ++i) sum += x[i];
    const float mean = sum / static_cast<float>(width);
    float squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
    inverse_[row] = 1 / std::sqrt(squares / static_cast<float>(width) + kEpsilon);
    float* const normalised = normalised_.row(row);
    float* const y = output.row(row);
    for (std::size_t i = 0; i < width; ++i) {
      normalised[i] = (x[i] - mean) * inverse_[row];
      y[i] = normalised[i] * weight_.values[i] + bias_.values[i];
    }
  }
}

void LayerNorm::backward(const Matrix& output_gradient, Matrix& input_gradient, const GradientSink& sink) const {
  const std::size_t width = output_gradient.columns();
  float* const weight_gradient = sink.of(weight_);
  float* const bias_gradient = sink.of(bias_);
  for (std::size_t row = 0; row < output_gradient.rows(); ++row) {
    const float* const gradient = output_gradient.row(row);
    const float* const normalised = normalised_.row(row);
    float mean = 0;        // of the gradients of the normalised row
    float projection = 0;  // and of their products with that row
    for (std::size_t i = 0; i < width; ++i) {
      bias_gradient[i] += gradient[i];
      weight_gradient[i] += gradient[i] * normalised[i];
      mean += gradient[i] * weight_.values[i];
      projection += gradient[i] * weight_.values[i] * normalised[i];
    }
    mean /= static_cast<float>(width);
    projection /= static_cast<float>(width);
    float* const result = input_gradient.row(row);
    for (std::size_t i = 0; i < width; ++i) {
      result[i] += inverse_[row] * (gradient[i] * weight_.values[i] - mean - normalised[i] * projection);
    }
  }
  sink.ready(bias_);
  sink.ready(weight_);
}

void gelu(const Matrix& input, Matrix& output) {
  output.resize(input.rows(), input.columns());
  for (std::size_t i = 0; i < input.values().size(); ++i) {
    const float x = input.values()[i];
    output.values()[i] = 0.5F * x * (1 + gelu_tanh(x));
  }
}

void gelu_backward(const Matrix& input, Matrix& gradient) {
  for (std::size_t i = 0; i < input.values().size(); ++i) {
    const float x = input.values()[i];
    const float t = gelu_tanh(x);
    const float slope = kGeluFactor * (1 + 3 * kGeluCubicFactor * x * x);
    gradient.values()[i] *= 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * slope;
  }
}

}  // namespace transformer
