#include "tensor.hpp"

#include <cmath>
#include <utility>

namespace transformer {

Tensor constant_tensor(std::string name, std::vector<std::int64_t> shape, float value) {
  std::size_t count = 1;
  for (const std::int64_t length : shape) count *= static_cast<std::size_t>(length);
  return {std::move(name), std::move(shape), std::vector<float>(count, value)};
}

// The standard's engines give the same numbers everywhere; its distributions do not.
Tensor random_tensor(std::string name, std::vector<std::int64_t> shape, float deviation, std::mt19937& random) {
  Tensor tensor = constant_tensor(std::move(name), std::move(shape), 0);
  const float limit = std::sqrt(3.0F) * deviation;
  for (float& value : tensor.values) value = limit * (2 * (static_cast<float>(random() >> 8) / float{1 << 24}) - 1);
  return tensor;
}

}  // namespace transformer
