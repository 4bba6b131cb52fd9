// Causal self-attention with several heads: each character looks at those before it in its sample, and at itself.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "layers.hpp"
#include "matrix.hpp"
#include "tensor.hpp"

namespace transformer {

class Attention {
 public:
  // Requires that `heads` divides `width`. output_deviation: of the first weights of the last projection.
  Attention(const std::string& name, std::size_t width, std::size_t heads, float output_deviation,
            std::mt19937& random);

  // Each `context` rows of the input are one sample. Keeps what backward() needs.
  void forward(const Matrix& input, std::size_t context, Matrix& output);

  // input: that of forward().
  void backward(const Matrix& input, const Matrix& output_gradient, Matrix& input_gradient, const GradientSink& sink);

  std::vector<Tensor*> tensors();

 private:
  // The part of a sample and a head.
  struct Part {
    View query, key, value;  // [context, head width] each
    View mixed;              // [context, head width]
    View weights;            // [context, context]
  };
  Part part(std::size_t sample, std::size_t head, Matrix& projected, Matrix& mixed, Matrix& weights) const;
  void backward_of(const Part& kept, const Part& gradient) const;

  std::size_t heads_;
  std::size_t context_ = 0;
  Linear projection_;  // to query, key and value
  Linear output_;
  Matrix projected_;  // [rows, 3 * width]
  Matrix weights_;    // [samples * heads * context, context]: how much each character looks at each other one
  Matrix mixed_;      // [rows, width]
  Matrix projected_gradient_, weights_gradient_, mixed_gradient_;
};

}  // namespace transformer
