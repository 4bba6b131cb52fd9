// The numbers of one step of an optimizer, in the type that it computes in.
//
// C++17, for nvcc.
#pragma once

namespace ddp::tensor {

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

}  // namespace ddp::tensor
