#include "matrix.hpp"

#include <cblas.h>

namespace transformer {
namespace {

blasint as_blasint(std::size_t size) { return static_cast<blasint>(size); }

CBLAS_TRANSPOSE order_of(const ConstView& view) { return view.is_transposed ? CblasTrans : CblasNoTrans; }

// A library that has threads would start one for each core, on every rank.
void use_one_thread() {
  static const bool is_done = (::openblas_set_num_threads(1), true);
  static_cast<void>(is_done);
}

}  // namespace

void multiply(const ConstView& a, const ConstView& b, const View& result, float scale, Into into) {
  use_one_thread();
  ::cblas_sgemm(CblasRowMajor, order_of(a), order_of(b), as_blasint(result.rows), as_blasint(result.columns),
                as_blasint(a.columns), scale, a.data, as_blasint(a.stride), b.data, as_blasint(b.stride),
                into == Into::add ? 1.0F : 0.0F, result.data, as_blasint(result.stride));
}

void add(const Matrix& from, Matrix& to) {
  for (std::size_t i = 0; i < to.values().size(); ++i) to.values()[i] += from.values()[i];
}

}  // namespace transformer
