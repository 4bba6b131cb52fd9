// A multi-layer perceptron in plain C++: linear layers with ReLU between them, softmax cross-entropy at the end.
//
// Forward keeps what backward needs; backward goes from the last layer to the first and says of each gradient when it
// is complete, which is what lets a gradient engine send it while the layers below are still at work.
//
// Threads: one at a time. The same inputs give the same bits.
#pragma once

#include <ddp/distributed_data_parallel.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "data.hpp"

namespace train {

class Mlp {
 public:
  // widths: features, hidden layers, classes. The first weights come from `seed`, biases are 0.
  Mlp(const std::vector<std::size_t>& widths, std::uint64_t seed);

  // "layer1.weight" [outputs, inputs], "layer1.bias" [outputs], "layer2.weight", ...: views of this object's memory.
  std::vector<ddp::Parameter> parameters();

  // The mean loss of a batch. Requires batch.feature_count == widths.front().
  double forward(const Samples& batch);

  // Adds the gradients of the last forward()'s mean loss. gradients[p] points at those of parameters()[p]; after the
  // last write to them ready(p) is called, from the last layer to the first.
  void backward(const std::vector<float*>& gradients, const std::function<void(std::size_t parameter)>& ready);

  // The share of samples whose most probable class is theirs.
  double accuracy(const Samples& samples);

 private:
  struct Layer {
    std::size_t inputs = 0;
    std::size_t outputs = 0;
    std::vector<float> weight;  // [outputs, inputs]
    std::vector<float> bias;    // [outputs]
  };

  void run_layers(const Samples& batch);

  std::vector<Layer> layers_;
  std::vector<std::vector<float>> activations_;  // activations_[i]: input of layer i, [batch, inputs]; last: the logits
  std::vector<float> logit_gradients_;           // [batch, classes], of the mean loss
};

}  // namespace train
