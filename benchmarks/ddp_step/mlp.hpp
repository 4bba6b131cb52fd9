// A multi-layer perceptron of float32 on OpenBLAS: linear layers of one width, ReLU between them, squared error.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace ddp::benchmarks {

class Mlp {
 public:
  struct Sizes {
    std::size_t layers = 4;
    std::size_t width = 2496;  // with four layers 24.9 million parameters
    std::size_t batch = 32;
  };

  Mlp(const Sizes& sizes, unsigned seed);

  const Sizes& sizes() const { return sizes_; }
  std::vector<float>& weights(std::size_t layer) { return weights_[layer]; }  // [out][in]
  std::vector<float>& biases(std::size_t layer) { return biases_[layer]; }

  // Where the gradients of a layer go; backward overwrites them.
  struct Gradients {
    float* weights;
    float* biases;
  };

  // One forward and backward pass. `ready` is called as soon as a layer's gradients are written, the last layer first,
  // before what the layer below needs is computed.
  void step(const std::vector<Gradients>& gradients, const std::function<void(std::size_t layer)>& ready);

 private:
  void forward();
  void backward(const std::vector<Gradients>& gradients, const std::function<void(std::size_t)>& ready);

  Sizes sizes_;
  std::vector<std::vector<float>> weights_, biases_;
  std::vector<std::vector<float>> activations_;  // [layer][batch][width]; the input first
  std::vector<float> targets_, error_, error_below_;
};

}  // namespace ddp::benchmarks
