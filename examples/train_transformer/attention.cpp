#include "attention.hpp"

#include <algorithm>
#include <cmath>

namespace transformer {
namespace {

float scale_of(std::size_t head_width) { return 1 / std::sqrt(static_cast<float>(head_width)); }

// The first `count` scores become weights whose sum is 1, and the others 0.
void weigh(float* scores, std::size_t count, std::size_t columns) {
  const float largest = *std::max_element(scores, scores + count);
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += scores[i] = std::exp(scores[i] - largest);
  for (std::size_t i = 0; i < count; ++i) scores[i] /= sum;
  std::fill(scores + count, scores + columns, 0.0F);
}

// `gradient` is that of a row of weights, and becomes that of its scores.
void weigh_backward(const float* weights, float* gradient, std::size_t count, std::size_t columns) {
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += weights[i] * gradient[i];
  for (std::size_t i = 0; i < count; ++i) gradient[i] = weights[i] * (gradient[i] - sum);
  std::fill(gradient + count, gradient + columns, 0.0F);
}

}  // namespace

Attention::Attention(const std::string& name, std::size_t width, std::size_t heads, float output_deviation,
                     std::mt19937& random)
    : heads_(heads),
      projection_(name + ".qkv", width, 3 * width, 1 / std::sqrt(static_cast<float>(width)), random),
      output_(name + ".output", width, width, output_deviation, random) {}

std::vector<Tensor*> Attention::tensors() {
  std::vector<Tensor*> tensors = projection_.tensors();
  for (Tensor* const tensor : output_.tensors()) tensors.push_back(tensor);
  return tensors;
}

Attention::Part Attention::part(std::size_t sample, std::size_t head, Matrix& projected, Matrix& mixed,
                                Matrix& weights) const {
  const std::size_t width = mixed.columns();
  const std::size_t head_width = width / heads_;
  float* const query = projected.row(sample * context_) + head * head_width;
  const auto of_projected = [&](float* data) { return View{data, context_, head_width, 3 * width}; };
  return {of_projected(query),
          of_projected(query + width),
          of_projected(query + 2 * width),
          {mixed.row(sample * context_) + head * head_width, context_, head_width, width},
          {weights.row((sample * heads_ + head) * context_), context_, context_, context_}};
}

void Attention::forward(const Matrix& input, std::size_t context, Matrix& output) {
  context_ = context;
  const std::size_t samples = input.rows() / context;
  projection_.forward(input, projected_);
  mixed_.resize(input.rows(), input.columns());
  weights_.resize(samples * heads_ * context, context);
  for (std::size_t sample = 0; sample < samples; ++sample) {
    for (std::size_t head = 0; head < heads_; ++head) {
      const Part its = part(sample, head, projected_, mixed_, weights_);
      multiply(its.query, transposed(its.key), its.weights, scale_of(its.query.columns));
      for (std::size_t i = 0; i < context; ++i) weigh(its.weights.data + i * context, i + 1, context);
      multiply(its.weights, its.value, its.mixed);
    }
  }
  output_.forward(mixed_, output);
}

void Attention::backward(const Matrix& input, const Matrix& output_gradient, Matrix& input_gradient,
                         const GradientSink& sink) {
  output_.backward(mixed_, output_gradient, mixed_gradient_, sink);
  projected_gradient_.resize(projected_.rows(), projected_.columns());
  weights_gradient_.resize(weights_.rows(), weights_.columns());
  for (std::size_t sample = 0; sample < input.rows() / context_; ++sample) {
    for (std::size_t head = 0; head < heads_; ++head) {
      backward_of(part(sample, head, projected_, mixed_, weights_),
                  part(sample, head, projected_gradient_, mixed_gradient_, weights_gradient_));
    }
  }
  projection_.backward(input, projected_gradient_, input_gradient, sink);
}

void Attention::backward_of(const Part& kept, const Part& gradient) const {
  multiply(transposed(kept.weights), gradient.mixed, gradient.value);
  multiply(gradient.mixed, transposed(kept.value), gradient.weights);
  for (std::size_t i = 0; i < context_; ++i) {
    weigh_backward(kept.weights.data + i * context_, gradient.weights.data + i * context_, i + 1, context_);
  }
  const float scale = scale_of(kept.query.columns);
  multiply(gradient.weights, kept.key, gradient.query, scale);
  multiply(transposed(gradient.weights), kept.query, gradient.key, scale);
}

}  // namespace transformer
