// Compiled with -O3, which makes vector code of these loops.
#include "worker_runtime/tensor/convert.hpp"

#include "worker_runtime/tensor/half.hpp"

namespace ddp::tensor {

void narrow(const float* __restrict__ from, std::uint16_t* __restrict__ to, std::size_t count, DataType type) {
  if (type == DataType::bfloat16) {
    for (std::size_t i = 0; i < count; ++i) to[i] = to_bfloat16(from[i]).bits;
  } else {
    for (std::size_t i = 0; i < count; ++i) to[i] = to_float16(from[i]).bits;
  }
}

void widen(const std::uint16_t* __restrict__ from, float* __restrict__ to, std::size_t count, DataType type) {
  if (type == DataType::bfloat16) {
    for (std::size_t i = 0; i < count; ++i) to[i] = to_float(Bfloat16{from[i]});
  } else {
    for (std::size_t i = 0; i < count; ++i) to[i] = to_float(Float16{from[i]});
  }
}

}  // namespace ddp::tensor
