// A multi-layer perceptron of float32 on OpenBLAS: linear layers of one width, ReLU between them, squared error.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "benchmarks/ddp_step/model.hpp"

namespace ddp::benchmarks {

class Mlp : public Model {
 public:
  struct Sizes {
    std::size_t layers = 4;
    std::size_t width = 2496;  // with four layers 24.9 million parameters
    std::size_t batch = 32;
  };

  Mlp(const Sizes& sizes, unsigned seed);

  std::vector<Parameter> parameters() override;  // of each layer the weights [out][in], then the biases

  // A layer's gradients are ready before what the layer below needs is computed.
  void step(const std::vector<float*>& gradients, const std::function<void(std::size_t parameter)>& ready) override;

 private:
  void forward();
  void backward(const std::vector<float*>& gradients, const std::function<void(std::size_t)>& ready);

  Sizes sizes_;
  std::vector<std::vector<float>> weights_, biases_;
  std::vector<std::vector<float>> activations_;  // [layer][batch][width]; the input first
  std::vector<float> targets_, error_, error_below_;
};

}  // namespace ddp::benchmarks
