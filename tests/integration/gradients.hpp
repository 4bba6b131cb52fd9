// Memory for the gradients of a model, as a gradient engine would give it.
#pragma once

#include <ddp/parameter.hpp>

#include <vector>

namespace ddp::test {

struct Gradients {
  explicit Gradients(const std::vector<Parameter>& parameters) {
    for (const Parameter& parameter : parameters) values.emplace_back(parameter.values.count);
    for (auto& value : values) pointers.push_back(value.data());
  }
  std::vector<std::vector<float>> values;
  std::vector<float*> pointers;
};

}  // namespace ddp::test
