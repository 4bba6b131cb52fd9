// What a hook has not sent of the gradients of a model: its errors, which it adds to the next step's gradients.
//
// Threads: one at a time.
#pragma once

#include <cmath>
#include <cstddef>
#include <map>
#include <vector>

#include "ddp/memory.hpp"

namespace ddp::gradient_engine {

class UnsentGradients {
 public:
  void clear() { of_parameters_.clear(); }

  // gradient: float32 in host memory, of parameter `index`. error: as many elements, until clear(), or none.
  void add(std::size_t index, const MemoryRange& gradient, std::vector<float>& error) {
    of_parameters_[index] = {static_cast<const float*>(gradient.data), &error};
  }

  // For CommunicationHook::parameters_unused(): these gradients were sent, and nobody applies them. Each rank adds the
  // mean to its own errors, so that the sum over ranks stays. A sum that is not finite is left out.
  void take_back(const std::vector<std::size_t>& parameters) noexcept {
    for (const std::size_t parameter : parameters) {
      const auto found = of_parameters_.find(parameter);
      if (found == of_parameters_.end()) continue;
      const auto& [gradient, error] = found->second;
      for (std::size_t i = 0; i < error->size(); ++i) {
        const float sum = (*error)[i] + gradient[i];
        if (std::isfinite(sum)) (*error)[i] = sum;
      }
    }
  }

 private:
  struct OfParameter {
    const float* gradient = nullptr;
    std::vector<float>* error = nullptr;
  };
  std::map<std::size_t, OfParameter> of_parameters_;
};

}  // namespace ddp::gradient_engine
