// A synthetic model: square linear layers one behind the other, whose training computes as much, and sends as much, as
// that of a real one of the same size. It learns to answer 0.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "ddp/parameter.hpp"

namespace ddp::bench {

class Model {
 public:
  // parameters: about how many. seed: of this rank's samples; the first weights are the same on all ranks.
  Model(std::size_t parameters, std::size_t batch, std::uint64_t seed);

  std::size_t parameter_count() const { return width_ * width_ * weights_.size(); }
  std::vector<Parameter> parameters();  // one for each layer

  // The loss of this rank's samples, which are the same in each step.
  double forward();

  // Writes the gradient of each layer, from the last to the first, to gradients[layer], and then calls ready(layer).
  void backward(const std::vector<float*>& gradients, const std::function<void(std::size_t layer)>& ready);

  // One step of SGD.
  void update(const std::vector<float*>& gradients);

 private:
  std::size_t width_;
  std::size_t batch_;
  std::vector<std::vector<float>> weights_;      // by layer
  std::vector<std::vector<float>> activations_;  // the samples, and then what each layer answers
};

}  // namespace ddp::bench
