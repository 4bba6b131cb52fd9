// The models of ddp_step_benchmark: `mlp`, of 24.9 million parameters; `transformer`, that of
// examples/train_transformer with 3.2 million; `small`, 100 tensors of 4 to 64 KiB whose backward pass only writes
// their gradients. torch_training.py has the same three.
#pragma once

#include <ddp/parameter.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ddp::benchmarks {

class Model {
 public:
  virtual ~Model() = default;

  virtual std::vector<Parameter> parameters() = 0;  // in memory of the model

  // One forward and backward pass. gradients[p] is where the gradient of parameters()[p] goes; the pass overwrites it.
  // ready(p) is called as soon as it is written, from the last layer to the first.
  virtual void step(const std::vector<float*>& gradients, const std::function<void(std::size_t parameter)>& ready) = 0;
};

// The data of a rank, and so its gradients, follow from `seed`. Throws std::invalid_argument for another name.
std::unique_ptr<Model> make_model(const std::string& name, unsigned seed);

std::size_t parameter_count(Model& model);

}  // namespace ddp::benchmarks
