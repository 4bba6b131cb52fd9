// Matrices of float32, and their product by OpenBLAS.
//
// Threads: one at a time. OpenBLAS computes on the caller's thread, because each rank of a job has its own core.
#pragma once

#include <cstddef>
#include <vector>

namespace transformer {

// Rows of numbers in memory of somebody else, `stride` numbers from the start of one row to the next.
struct ConstView {
  const float* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t stride = 0;
  bool is_transposed = false;  // row i of the matrix is column i of the memory
};

struct View {
  float* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t stride = 0;

  operator ConstView() const { return {data, rows, columns, stride}; }  // NOLINT: as a pointer to const
};

inline ConstView transposed(const ConstView& view) {
  return {view.data, view.columns, view.rows, view.stride, !view.is_transposed};
}

enum class Into { overwrite, add };

// result = scale * a * b, or result += scale * a * b. The result is in other memory than a and b.
void multiply(const ConstView& a, const ConstView& b, const View& result, float scale = 1, Into into = Into::overwrite);

// Row-major.
class Matrix {
 public:
  // What the numbers are afterwards is undefined.
  void resize(std::size_t rows, std::size_t columns) {
    rows_ = rows;
    columns_ = columns;
    values_.resize(rows * columns);
  }

  std::size_t rows() const { return rows_; }
  std::size_t columns() const { return columns_; }
  std::vector<float>& values() { return values_; }
  const std::vector<float>& values() const { return values_; }
  float* row(std::size_t i) { return values_.data() + i * columns_; }
  const float* row(std::size_t i) const { return values_.data() + i * columns_; }

  View view() { return {values_.data(), rows_, columns_, columns_}; }
  ConstView view() const { return {values_.data(), rows_, columns_, columns_}; }

 private:
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
  std::vector<float> values_;
};

// Row by row.
void add(const Matrix& from, Matrix& to);

}  // namespace transformer
