// The parameters of the model, and where backward puts their gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace transformer {

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
  std::size_t index = 0;  // among the model's parameters
};

// All values are `value`.
Tensor constant_tensor(std::string name, std::vector<std::int64_t> shape, float value);

// Values are uniform, with mean 0 and this standard deviation.
Tensor random_tensor(std::string name, std::vector<std::int64_t> shape, float deviation, std::mt19937& random);

// What backward adds gradients to, and what it tells when the gradient of a parameter is complete.
struct GradientSink {
  const std::vector<float*>& gradients;  // by parameter
  const std::function<void(std::size_t parameter)>& on_ready;

  float* of(const Tensor& tensor) const { return gradients[tensor.index]; }
  void ready(const Tensor& tensor) const { on_ready(tensor.index); }
};

}  // namespace transformer
