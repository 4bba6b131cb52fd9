// A communication hook of one's own: ranks send the signs of their gradients only, one byte each instead of four.
//
//   ddprun --standalone --nproc-per-node=4 communication_hook
//
// Finds the weights of a sum from noisy samples, different ones on each rank. Ends with 0, and prints the largest error
// of a weight.
#include <ddp/ddp.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace {

// A gradient becomes the mean of the signs that it has on the ranks, of which there are at most 127.
// Source: Bernstein et al., "signSGD with Majority Vote", arXiv 1810.05291.
struct MeanOfSigns : ddp::CommunicationHook {
  std::map<std::size_t, std::vector<std::int8_t>> signs_of;  // by bucket
  std::string describe() const override { return "mean of signs"; }
  std::optional<ddp::Work> next(const ddp::HookCall& call) override {
    auto* const gradients = static_cast<float*>(call.bucket.gradients.data);
    auto& signs = signs_of[call.bucket.number];
    signs.resize(call.bucket.gradients.count);
    if (call.stage == 0) {
      for (std::size_t i = 0; i < signs.size(); ++i) signs[i] = (gradients[i] > 0) - (gradients[i] < 0);
      return call.group.all_reduce_async(signs, ddp::ReduceOp::sum, call.options);
    }
    for (std::size_t i = 0; i < signs.size(); ++i) gradients[i] = static_cast<float>(signs[i]) / call.group.size();
    return std::nullopt;
  }
};

constexpr int kSteps = 400, kBatch = 32;
constexpr float kRate = 0.02F;
const std::vector<float> kWeights = {0.5F, -1, 2, 0, 1.5F};  // to be found

float random_number(std::mt19937& random) { return static_cast<float>(random() % 2001) / 1000 - 1; }

// Adds the gradients of the mean squared error over some samples.
void backward(const std::vector<float>& weights, float* gradients, std::mt19937& random) {
  std::vector<float> inputs(weights.size());
  for (int sample = 0; sample < kBatch; ++sample) {
    float error = random_number(random) / 10;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = random_number(random);
      error += (weights[i] - kWeights[i]) * inputs[i];
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) gradients[i] += 2 * error * inputs[i] / kBatch;
  }
}

void train(ddp::ProcessGroup& world) {
  std::vector<float> weights(kWeights.size());
  ddp::DistributedDataParallelOptions options;
  options.communication_hook = std::make_shared<MeanOfSigns>();
  ddp::DistributedDataParallel model(world, {{"weights", {static_cast<std::int64_t>(weights.size())}, weights}},
                                     options);
  auto* const gradients = model.gradient<float>(0).data();
  std::mt19937 random(static_cast<unsigned>(world.rank()));
  for (int t = 0; t < kSteps; ++t) {
    auto step = model.begin_step();
    backward(weights, gradients, random);
    step.ready(0);
    step.finish();
    const float rate = kRate * static_cast<float>(kSteps - t) / kSteps;
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= rate * gradients[i];
  }
  float error = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) error = std::max(error, std::abs(weights[i] - kWeights[i]));
  if (world.rank() == 0) std::printf("largest error of a weight: %.4f\n", error);
}

}  // namespace

int main() {
  try {
    auto world = ddp::init_process_group();
    train(world);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
