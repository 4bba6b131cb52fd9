// Matrices in row-major order, as PowerSGD needs them: a gradient of n rows and m columns, and factors of few columns,
// which are kept column by column: `p` has rank columns of n, `q` rank columns of m.
//
// Pure but for the memory given; any thread.
#pragma once

#include <cstddef>

namespace ddp::gradient_engine {

struct MatrixSize {
  std::size_t rows = 0;
  std::size_t columns = 0;

  bool operator==(const MatrixSize&) const = default;
};

// p = matrix * q
void multiply(const float* matrix, MatrixSize size, const float* q, std::size_t rank, float* p);
// q = transposed matrix * p
void multiply_transposed(const float* matrix, MatrixSize size, const float* p, std::size_t rank, float* q);
// matrix = p * transposed q
void multiply_factors(const float* p, const float* q, std::size_t rank, MatrixSize size, float* matrix);

// Makes the columns orthogonal and of norm 1, one after the other (modified Gram-Schmidt). A column is divided by its
// norm plus `epsilon`. One that is zero, or is nothing but rounding errors once the columns before are taken out of it,
// becomes zero.
void orthogonalize(float* columns, std::size_t length, std::size_t rank, double epsilon);

}  // namespace ddp::gradient_engine
