#include "worker_runtime/engine/host_gradients.hpp"

namespace ddp::gradient_engine {
namespace {

template <class T>
void scale_all(T* values, std::size_t count, T factor) {
  for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
}

}  // namespace

void scale(const MemoryRange& values, double factor) {
  if (values.type == DataType::float64) {
    scale_all(static_cast<double*>(values.data), values.count, factor);
  } else {
    scale_all(static_cast<float*>(values.data), values.count, static_cast<float>(factor));
  }
}

}  // namespace ddp::gradient_engine
