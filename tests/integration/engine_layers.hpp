// Layers of the networks that tests train beside PyTorch, in float32 and without any library.
#pragma once

#include <cmath>
#include <cstddef>
#include <utility>

#include "tests/integration/engine_numbers.hpp"

namespace ddp::test {

// Rows of numbers: [rows, columns].
struct Matrix {
  Matrix(int row_count, int column_count, Floats numbers_in_rows = {})
      : rows(row_count), columns(column_count), values(std::move(numbers_in_rows)) {
    values.resize(static_cast<std::size_t>(rows * columns));
  }
  float& at(int row, int column) { return values[static_cast<std::size_t>(row * columns + column)]; }
  float at(int row, int column) const { return values[static_cast<std::size_t>(row * columns + column)]; }

  int rows, columns;
  Floats values;
};

// A linear layer's parameters and where their gradients lie: weight [outputs, inputs], bias [outputs].
struct Layer {
  const float* weight;
  const float* bias;
  float* weight_gradient;
  float* bias_gradient;
  int outputs, inputs;

  Matrix forward(const Matrix& x) const {
    Matrix out(x.rows, outputs);
    for (int r = 0; r < x.rows; ++r) {
      for (int o = 0; o < outputs; ++o) {
        float sum = bias[o];
        for (int i = 0; i < inputs; ++i) sum += x.at(r, i) * weight[o * inputs + i];
        out.at(r, o) = sum;
      }
    }
    return out;
  }

  // Adds to the gradients, and returns that of x.
  Matrix backward(const Matrix& x, const Matrix& of_out) const {
    Matrix of_x(x.rows, inputs);
    for (int r = 0; r < x.rows; ++r) {
      for (int o = 0; o < outputs; ++o) {
        const float gradient = of_out.at(r, o);
        bias_gradient[o] += gradient;
        for (int i = 0; i < inputs; ++i) {
          weight_gradient[o * inputs + i] += gradient * x.at(r, i);
          of_x.at(r, i) += gradient * weight[o * inputs + i];
        }
      }
    }
    return of_x;
  }
};

inline Matrix softsign(Matrix z) {
  for (float& each : z.values) each = each / (1 + std::abs(each));
  return z;
}

inline Matrix through_softsign(const Matrix& z, Matrix gradient) {
  for (std::size_t i = 0; i < z.values.size(); ++i) {
    const float root = 1 + std::abs(z.values[i]);
    gradient.values[i] /= root * root;
  }
  return gradient;
}

}  // namespace ddp::test
