#include "transformer.hpp"

#include <algorithm>
#include <cmath>

namespace transformer {
namespace {

constexpr float kEmbeddingDeviation = 0.1F;
constexpr float kHeadDeviation = 0.02F;  // small, so that the first loss is about log(vocabulary)
constexpr std::size_t kExpansion = 4;    // hidden numbers of the perceptron for each of the width

float deviation_of(std::size_t inputs) { return 1 / std::sqrt(static_cast<float>(inputs)); }

// The blocks add to one sum: each of the 2 * layers branches is smaller the more there are. Source: GPT-2.
float branch_deviation(const Shape& shape, std::size_t inputs) {
  return deviation_of(inputs) / std::sqrt(static_cast<float>(2 * shape.layers));
}

Tensor embedding(const char* name, std::size_t rows, std::size_t width, std::mt19937& random) {
  return random_tensor(name, {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(width)}, kEmbeddingDeviation,
                       random);
}

void append(std::vector<Tensor*>& tensors, const std::vector<Tensor*>& more) {
  tensors.insert(tensors.end(), more.begin(), more.end());
}

// The logits of one character become the gradient of `scale` times its loss, which is returned.
double cross_entropy(float* logits, std::size_t count, std::size_t target, float scale) {
  const float largest = *std::max_element(logits, logits + count);
  const float logit = logits[target] - largest;
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += logits[i] = std::exp(logits[i] - largest);
  for (std::size_t i = 0; i < count; ++i) logits[i] *= scale / sum;
  logits[target] -= scale;
  return std::log(static_cast<double>(sum)) - logit;
}

}  // namespace

Block::Block(const std::string& name, const Shape& shape, std::mt19937& random)
    : attention_norm_(name + ".attention.norm", shape.width),
      attention_(name + ".attention", shape.width, shape.heads, branch_deviation(shape, shape.width), random),
      mlp_norm_(name + ".mlp.norm", shape.width),
      up_(name + ".mlp.up", shape.width, kExpansion * shape.width, deviation_of(shape.width), random),
      down_(name + ".mlp.down", kExpansion * shape.width, shape.width,
            branch_deviation(shape, kExpansion * shape.width), random) {}

std::vector<Tensor*> Block::tensors() {
  std::vector<Tensor*> tensors = attention_norm_.tensors();
  append(tensors, attention_.tensors());
  append(tensors, mlp_norm_.tensors());
  append(tensors, up_.tensors());
  append(tensors, down_.tensors());
  return tensors;
}

void Block::forward(Matrix& x, std::size_t context) {
  attention_norm_.forward(x, attention_input_);
  attention_.forward(attention_input_, context, branch_);
  add(branch_, x);
  mlp_norm_.forward(x, mlp_input_);
  up_.forward(mlp_input_, hidden_);
  gelu(hidden_, activated_);
  down_.forward(activated_, branch_);
  add(branch_, x);
}

void Block::backward(Matrix& gradient, const GradientSink& sink) {
  down_.backward(activated_, gradient, hidden_gradient_, sink);
  gelu_backward(hidden_, hidden_gradient_);
  up_.backward(mlp_input_, hidden_gradient_, branch_, sink);
  mlp_norm_.backward(branch_, gradient, sink);
  attention_.backward(attention_input_, gradient, branch_, sink);
  attention_norm_.backward(branch_, gradient, sink);
}

Transformer::Transformer(const Shape& shape, std::uint64_t seed)
    : width_(shape.width),
      random_(static_cast<std::uint32_t>(seed)),
      token_(embedding("token.weight", shape.vocabulary, shape.width, random_)),
      position_(embedding("position.weight", shape.context, shape.width, random_)),
      norm_("norm", shape.width),
      head_("head", shape.width, shape.vocabulary, kHeadDeviation, random_) {
  for (std::size_t i = 0; i < shape.layers; ++i) blocks_.emplace_back("block." + std::to_string(i), shape, random_);
  std::size_t index = 0;
  for (Tensor* const tensor : tensors()) tensor->index = index++;
}

// In the order in which forward uses them.
std::vector<Tensor*> Transformer::tensors() {
  std::vector<Tensor*> tensors = {&token_, &position_};
  for (Block& block : blocks_) append(tensors, block.tensors());
  append(tensors, norm_.tensors());
  append(tensors, head_.tensors());
  return tensors;
}

std::vector<ddp::Parameter> Transformer::parameters() {
  std::vector<ddp::Parameter> parameters;
  for (Tensor* const tensor : tensors()) parameters.push_back({tensor->name, tensor->shape, tensor->values});
  return parameters;
}

void Transformer::embed(const Batch& batch) {
  x_.resize(batch.inputs.size(), width_);
  for (std::size_t row = 0; row < x_.rows(); ++row) {
    const float* const token = token_.values.data() + batch.inputs[row] * width_;
    const float* const position = position_.values.data() + row % batch.context * width_;
    for (std::size_t i = 0; i < width_; ++i) x_.row(row)[i] = token[i] + position[i];
  }
}

double Transformer::forward(const Batch& batch, const std::function<void(std::size_t parameter)>& use) {
  const auto use_all = [&use](const std::vector<Tensor*>& tensors) {
    if (!use) return;
    for (const Tensor* const tensor : tensors) use(tensor->index);
  };
  use_all({&token_, &position_});
  embed(batch);
  for (Block& block : blocks_) {
    use_all(block.tensors());
    block.forward(x_, batch.context);
  }
  use_all(norm_.tensors());
  norm_.forward(x_, head_input_);
  use_all(head_.tensors());
  head_.forward(head_input_, logits_);
  const auto scale = 1 / static_cast<float>(logits_.rows());
  double loss = 0;
  for (std::size_t row = 0; row < logits_.rows(); ++row) {
    loss += cross_entropy(logits_.row(row), logits_.columns(), batch.targets[row], scale);
  }
  return loss / static_cast<double>(logits_.rows());
}

void Transformer::backward(const Batch& batch, const std::vector<float*>& gradients,
                           const std::function<void(std::size_t parameter)>& ready) {
  const GradientSink sink{gradients, ready};
  Matrix head_gradient;
  head_.backward(head_input_, logits_, head_gradient, sink);
  std::fill(x_.values().begin(), x_.values().end(), 0.0F);
  norm_.backward(head_gradient, x_, sink);
  for (std::size_t i = blocks_.size(); i-- > 0;) blocks_[i].backward(x_, sink);
  for (std::size_t row = 0; row < x_.rows(); ++row) {
    float* const token = sink.of(token_) + batch.inputs[row] * width_;
    float* const position = sink.of(position_) + row % batch.context * width_;
    for (std::size_t i = 0; i < width_; ++i) {
      token[i] += x_.row(row)[i];
      position[i] += x_.row(row)[i];
    }
  }
  sink.ready(position_);
  sink.ready(token_);
}

}  // namespace transformer
