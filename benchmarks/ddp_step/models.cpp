#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <utility>

#include "benchmarks/ddp_step/mlp.hpp"
#include "benchmarks/ddp_step/model.hpp"
#include "examples/train_transformer/transformer.hpp"

namespace ddp::benchmarks {

namespace {

// A step takes about as long as one of the perceptron. The text is random, which changes nothing in the time.
class TransformerModel : public Model {
 public:
  explicit TransformerModel(unsigned seed) : transformer_(kShape, 17), batch_{kShape.context, {}, {}} {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < kSamples * kShape.context; ++i) {
      batch_.inputs.push_back(random() % kShape.vocabulary);
      batch_.targets.push_back(random() % kShape.vocabulary);
    }
  }

  std::vector<Parameter> parameters() override { return transformer_.parameters(); }

  void step(const std::vector<float*>& gradients, const std::function<void(std::size_t)>& ready) override {
    transformer_.forward(batch_);
    // Its backward pass adds.
    for (std::size_t p = 0; p < sizes_.size(); ++p) std::fill_n(gradients[p], sizes_[p], 0.0F);
    transformer_.backward(batch_, gradients, ready);
  }

 private:
  static constexpr transformer::Shape kShape{.vocabulary = 64, .context = 128, .width = 256, .heads = 8, .layers = 4};
  static constexpr std::size_t kSamples = 2;

  static std::vector<std::size_t> sizes_of(transformer::Transformer& transformer) {
    std::vector<std::size_t> out;
    for (const Parameter& parameter : transformer.parameters()) out.push_back(parameter.values.count);
    return out;
  }

  transformer::Transformer transformer_;
  std::vector<std::size_t> sizes_ = sizes_of(transformer_);  // of the parameters
  transformer::Batch batch_;
};

class SmallTensors : public Model {
 public:
  explicit SmallTensors(unsigned seed) : seed_(static_cast<float>(seed)) {
    for (std::size_t i = 0; i < 100; ++i) tensors_.emplace_back(kColumns * (16 + 240 * i / 99));
  }

  std::vector<Parameter> parameters() override {
    std::vector<Parameter> out;
    for (auto& tensor : tensors_) {
      const auto rows = static_cast<std::int64_t>(tensor.size()) / kColumns;
      out.push_back({"tensor" + std::to_string(out.size()), {rows, kColumns}, tensor});
    }
    return out;
  }

  void step(const std::vector<float*>& gradients, const std::function<void(std::size_t)>& ready) override {
    for (std::size_t p = tensors_.size(); p-- > 0;) {
      std::fill_n(gradients[p], tensors_[p].size(), seed_ + static_cast<float>(p));
      ready(p);
    }
  }

 private:
  static constexpr int kColumns = 64;

  float seed_;
  std::vector<std::vector<float>> tensors_;
};

}  // namespace

std::unique_ptr<Model> make_model(const std::string& name, unsigned seed) {
  if (name == "mlp") return std::make_unique<Mlp>(Mlp::Sizes{}, seed);
  if (name == "transformer") return std::make_unique<TransformerModel>(seed);
  if (name == "small") return std::make_unique<SmallTensors>(seed);
  throw std::invalid_argument("no model: " + name);
}

std::size_t parameter_count(Model& model) {
  std::size_t count = 0;
  for (const Parameter& parameter : model.parameters()) count += parameter.values.count;
  return count;
}

}  // namespace ddp::benchmarks
