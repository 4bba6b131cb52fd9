// Compiled with -O3, which makes vector code of these loops.
#include "worker_runtime/engine/hooks/matrix.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace ddp::gradient_engine {
namespace {

constexpr std::size_t kLanes = 16;  // sums at a time

float dot(const float* a, const float* b, std::size_t count) {
  std::array<float, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) sums[lane] += a[i] * b[i];
  float sum = 0;
  for (const float each : sums) sum += each;
  return sum;
}

void add_multiple(float* __restrict__ to, const float* __restrict__ from, float factor, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

double norm_of(const float* column, std::size_t length) {
  double squares = 0;
  for (std::size_t i = 0; i < length; ++i) squares += double{column[i]} * column[i];
  return std::sqrt(squares);
}

}  // namespace

void multiply(const float* matrix, MatrixSize size, const float* q, std::size_t rank, float* p) {
  for (std::size_t row = 0; row < size.rows; ++row) {
    for (std::size_t k = 0; k < rank; ++k) {
      p[k * size.rows + row] = dot(matrix + row * size.columns, q + k * size.columns, size.columns);
    }
  }
}

void multiply_transposed(const float* matrix, MatrixSize size, const float* p, std::size_t rank, float* q) {
  std::fill_n(q, rank * size.columns, 0.0F);
  for (std::size_t row = 0; row < size.rows; ++row) {
    for (std::size_t k = 0; k < rank; ++k) {
      add_multiple(q + k * size.columns, matrix + row * size.columns, p[k * size.rows + row], size.columns);
    }
  }
}

void multiply_factors(const float* p, const float* q, std::size_t rank, MatrixSize size, float* matrix) {
  std::fill_n(matrix, size.rows * size.columns, 0.0F);
  for (std::size_t row = 0; row < size.rows; ++row) {
    for (std::size_t k = 0; k < rank; ++k) {
      add_multiple(matrix + row * size.columns, q + k * size.columns, p[k * size.rows + row], size.columns);
    }
  }
}

void orthogonalize(float* columns, std::size_t length, std::size_t rank, double epsilon) {
  constexpr double kRounding = 1e-5;  // of a column's norm, what float32 loses in a subtraction
  std::vector<double> norms_before(rank);
  for (std::size_t k = 0; k < rank; ++k) norms_before[k] = norm_of(columns + k * length, length);
  for (std::size_t k = 0; k < rank; ++k) {
    float* const column = columns + k * length;
    const double norm = norm_of(column, length);
    if (!(norm > kRounding * norms_before[k])) {
      std::fill_n(column, length, 0.0F);
      continue;
    }
    for (std::size_t i = 0; i < length; ++i) column[i] = static_cast<float>(column[i] / (norm + epsilon));
    for (std::size_t other = k + 1; other < rank; ++other) {
      float* const rest = columns + other * length;
      add_multiple(rest, column, -dot(column, rest, length), length);
    }
  }
}

}  // namespace ddp::gradient_engine
