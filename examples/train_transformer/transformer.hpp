// A transformer that predicts the next character of a text, as GPT does: embeddings, blocks of attention and of a
// perceptron with layer norms before them, and a last projection to the characters.
//
// Forward keeps what backward needs. Backward goes from the last layer to the first and says of each gradient when it
// is complete, so that a gradient engine can send it while the layers below are still at work.
//
// Threads: one at a time. The same inputs give the same bits.
#pragma once

#include <ddp/parameter.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "attention.hpp"
#include "layers.hpp"
#include "matrix.hpp"
#include "tensor.hpp"
#include "text.hpp"

namespace transformer {

struct Shape {
  std::size_t vocabulary = 0;
  std::size_t context = 0;  // characters that the model looks back at
  std::size_t width = 0;
  std::size_t heads = 1;  // divides `width`
  std::size_t layers = 0;
};

// x += attention(norm(x)), then x += perceptron(norm(x))
class Block {
 public:
  Block(const std::string& name, const Shape& shape, std::mt19937& random);

  void forward(Matrix& x, std::size_t context);
  void backward(Matrix& gradient, const GradientSink& sink);  // that of the output becomes that of the input
  std::vector<Tensor*> tensors();

 private:
  LayerNorm attention_norm_;
  Attention attention_;
  LayerNorm mlp_norm_;
  Linear up_;
  Linear down_;
  Matrix attention_input_, mlp_input_, hidden_, activated_;  // of the last forward()
  Matrix branch_, hidden_gradient_;
};

class Transformer {
 public:
  // The first parameters follow from `seed`.
  Transformer(const Shape& shape, std::uint64_t seed);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  // "token.weight", "position.weight", "block.0.attention.qkv.weight", ...: views of this object's memory.
  std::vector<ddp::Parameter> parameters();

  // The mean over all characters of -log(the probability that the model gives to the next one). use(p), if there is
  // one, is called before parameters()[p] is read: for parameters that still come in from other ranks.
  double forward(const Batch& batch, const std::function<void(std::size_t parameter)>& use = {});

  // Adds the gradients of the last forward()'s loss. gradients[p] points at those of parameters()[p]; after the last
  // write to them ready(p) is called, from the last layer to the first.
  void backward(const Batch& batch, const std::vector<float*>& gradients,
                const std::function<void(std::size_t parameter)>& ready);

 private:
  std::vector<Tensor*> tensors();
  void embed(const Batch& batch);

  std::size_t width_;
  std::mt19937 random_;
  Tensor token_;     // [vocabulary, width]
  Tensor position_;  // [context, width]
  std::vector<Block> blocks_;
  LayerNorm norm_;
  Linear head_;
  Matrix x_;  // what goes through the blocks, [samples * context, width]; then its gradient
  Matrix head_input_;
  Matrix logits_;  // [samples * context, vocabulary]; then the gradient of the mean loss
};

}  // namespace transformer
