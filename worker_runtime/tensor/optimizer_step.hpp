// One step of an optimizer, element by element.
//
// C++17, for nvcc. Pure but for the memory given; any thread.
#pragma once

#include <cstddef>

#include "ddp/memory.hpp"

namespace ddp::tensor {

// The numbers of one step, in the type that it computes in.
struct AdamWNumbers {
  float scale;     // of the gradients
  float kept;      // of the parameter, by weight decay
  float new_part;  // 1 - beta1
  float beta2;
  float square_part;  // 1 - beta2
  float rate;         // learning rate / (1 - beta1^t)
  float correction;   // sqrt(1 - beta2^t)
  float epsilon;
};

struct SgdNumbers {
  float scale;  // of the gradients
  float rate;
  float decay;
  float momentum;
  float old_part;  // of the momentum that was kept: 0 in a parameter's first step
  bool nesterov;
};

// Consecutive elements of one parameter. No array overlaps another.
struct OptimizedPiece {
  DataType type = DataType::float32;  // of g, and of what is rounded: float32, float16 or bfloat16
  float* p = nullptr;                 // the parameter, or its master weights
  const void* g = nullptr;
  float* m = nullptr;       // null without momentum
  float* v = nullptr;       // null but for AdamW
  void* rounded = nullptr;  // the parameter of 16 bits that p is rounded to, to nearest even; null for float32
  std::size_t count = 0;
};

// In host memory.
void update(const OptimizedPiece& piece, const AdamWNumbers& numbers);
void update(const OptimizedPiece& piece, const SgdNumbers& numbers);

}  // namespace ddp::tensor
