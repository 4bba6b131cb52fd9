// Parameters of 16 bits with float32 master weights: ShardedOptimizer, and what works on gradients of 16 bits.
#include "ddp/checkpointer.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/error.hpp"
#include "ddp/gradient_scaling.hpp"
#include "ddp/sharded_optimizer.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"
#include "worker_runtime/tensor/half.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

namespace ddp {
namespace {

using test::results_of_ranks;
using ::testing::Each;

using OptimizerOptions = std::variant<AdamWOptions, SgdOptions>;

constexpr Sharding kShardings[] = {Sharding::none, Sharding::optimizer, Sharding::gradients};

float rounded(float value, DataType type) {
  if (type == DataType::float16) return to_float(tensor::to_float16(value));
  return type == DataType::bfloat16 ? to_float(tensor::to_bfloat16(value)) : value;
}

void store(const MemoryRange& to, std::size_t i, float value) {
  if (to.type == DataType::float32) {
    static_cast<float*>(to.data)[i] = value;
  } else {
    static_cast<std::uint16_t*>(to.data)[i] =
        to.type == DataType::float16 ? tensor::to_float16(value).bits : tensor::to_bfloat16(value).bits;
  }
}

float load(const MemoryRange& from, std::size_t i) {
  if (from.type == DataType::float32) return static_cast<const float*>(from.data)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(from.data)[i];
  return from.type == DataType::float16 ? to_float(tensor::Float16{bits}) : to_float(tensor::Bfloat16{bits});
}

// MixedTensors of several types, of sizes that divide by nothing.
class MixedTensors {
 public:
  MixedTensors() {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (std::size_t p = 0; p < std::size(kTypes); ++p) {
      memory_.emplace_back(kCounts[p]);
      for (std::size_t i = 0; i < kCounts[p]; ++i) store(values(p), i, uniform(random));
    }
  }

  MemoryRange values(std::size_t p) { return {memory_[p].data(), kCounts[p], kTypes[p]}; }

  std::vector<Parameter> parameters() {
    std::vector<Parameter> all;
    for (std::size_t p = 0; p < memory_.size(); ++p) {
      all.push_back({"p" + std::to_string(p), {static_cast<std::int64_t>(kCounts[p])}, values(p)});
    }
    return all;
  }

  std::string bits(std::optional<DataType> left_out = {}) {
    std::ostringstream text;
    for (std::size_t p = 0; p < memory_.size(); ++p) {
      if (kTypes[p] == left_out) continue;
      for (std::size_t i = 0; i < kCounts[p]; ++i) text << std::hexfloat << load(values(p), i) << " ";
    }
    return text.str();
  }

 private:
  static constexpr DataType kTypes[] = {DataType::bfloat16, DataType::float32, DataType::float16, DataType::bfloat16,
                                        DataType::float16};
  static constexpr std::size_t kCounts[] = {2500, 7, 333, 40, 1};

  std::vector<std::vector<std::uint32_t>> memory_;
};

struct DrawnGradients {
  explicit DrawnGradients(int rank, int step) : random(static_cast<unsigned>(100 * step + rank)) {}
  float next() { return uniform(random); }

  std::mt19937 random;
  std::uniform_real_distribution<float> uniform{-1, 1};
};

// A model with its optimizer.
struct MixedTraining {
  MixedTraining(ProcessGroup group, const OptimizerOptions& of_optimizer, Sharding sharding)
      : world(group), optimizer(group, tensors.parameters(), of_optimizer, sharding) {
    DistributedDataParallelOptions options;
    options.first_bucket_cap_bytes = options.bucket_cap_bytes = 1000;
    optimizer.prepare(options);
    model.emplace(group, tensors.parameters(), options);
  }

  // DrawnGradients, times the factor.
  void add_gradients(int number, float factor = 1) {
    DrawnGradients gradients(world.rank(), number);
    optimizer.wait();
    auto step = model->begin_step();
    for (std::size_t p = model->parameter_count(); p-- > 0;) {
      const MemoryRange gradient = model->gradient(p);
      for (std::size_t i = 0; i < gradient.count; ++i) store(gradient, i, factor * gradients.next());
      step.ready(p);
    }
    step.finish();
  }

  void train(int from, int until) {
    for (int i = from; i < until; ++i) {
      add_gradients(i);
      optimizer.step();
    }
  }

  std::string bits(std::optional<DataType> left_out = {}) {
    optimizer.wait();
    return tensors.bits(left_out);
  }

  ProcessGroup world;
  MixedTensors tensors;
  ShardedOptimizer optimizer;
  std::optional<DistributedDataParallel> model;
};

// AdamW in float32 on one process, of the mean gradients of two ranks, rounded where they have 16 bits.
std::string plain_adamw(const AdamWOptions& options, int steps) {
  MixedTensors tensors;
  const std::size_t count = tensors.parameters().size();
  std::vector<std::vector<float>> master(count), m(count), v(count);
  for (std::size_t p = 0; p < count; ++p) {
    const MemoryRange values = tensors.values(p);
    for (std::size_t i = 0; i < values.count; ++i) master[p].push_back(load(values, i));
    m[p].resize(values.count), v[p].resize(values.count);
  }
  for (int t = 1; t <= steps; ++t) {
    DrawnGradients of_rank_0(0, t), of_rank_1(1, t);
    const auto rate = static_cast<float>(options.learning_rate / (1 - std::pow(options.beta1, t)));
    const auto correction = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, t)));
    const auto kept = static_cast<float>(1 - options.learning_rate * options.weight_decay);
    const auto epsilon = static_cast<float>(options.epsilon);
    for (std::size_t p = count; p-- > 0;) {
      const MemoryRange values = tensors.values(p);
      for (std::size_t i = 0; i < values.count; ++i) {
        const float sum = rounded(of_rank_0.next(), values.type) + rounded(of_rank_1.next(), values.type);
        const float g = rounded(sum / 2, values.type);
        m[p][i] += static_cast<float>(1 - options.beta1) * (g - m[p][i]);
        v[p][i] = static_cast<float>(options.beta2) * v[p][i] + static_cast<float>(1 - options.beta2) * g * g;
        master[p][i] = master[p][i] * kept - rate * m[p][i] / (std::sqrt(v[p][i]) / correction + epsilon);
        store(values, i, master[p][i]);
      }
    }
  }
  return tensors.bits();
}

TEST(MasterWeights, ComeToTheBitsOfAPlainComputationInFloat32) {
  const AdamWOptions options{.learning_rate = 1e-3};  // a step is less than a rounding of most parameters
  const std::string want = plain_adamw(options, 20);
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    std::string different;
    for (const Sharding sharding : kShardings) {
      MixedTraining training(world, options, sharding);
      training.train(1, 21);
      if (training.bits() != want) different += std::to_string(static_cast<int>(sharding)) + " differs ";
    }
    return different;
  });
  EXPECT_THAT(results, Each(""));
  EXPECT_NE(want, MixedTensors().bits());
}

TEST(MasterWeights, GoToNewOwnersWhenBucketsAreRebuilt) {
  const OptimizerOptions all[] = {AdamWOptions{.learning_rate = 0.01}, SgdOptions{.learning_rate = 0.001}};
  for (const OptimizerOptions& options : all) {
    const auto results = results_of_ranks(3, [&](ProcessGroup world) -> std::string {
      std::vector<std::string> bits;
      for (const Sharding sharding : kShardings) {
        MixedTraining training(world, options, sharding);
        training.model->rebuild_buckets();  // there is nothing to send yet
        training.train(0, 5);
        training.optimizer.wait();
        auto step = training.model->begin_step();
        for (const std::size_t p : {2U, 0U, 4U, 1U, 3U}) step.ready(p);
        step.finish();
        training.optimizer.step();
        training.model->rebuild_buckets();
        training.train(5, 10);
        bits.push_back(training.bits());
      }
      return bits[0] == bits[1] && bits[0] == bits[2] ? bits[0] : "they differ";
    });
    EXPECT_GT(results[0].size(), 1000U) << results[0];
    EXPECT_THAT(results, Each(results[0]));
  }
}

TEST(MasterWeights, AResumedRunEndsInTheSameBits) {
  const test::ScratchDirectory scratch;
  for (const Sharding sharding : kShardings) {
    const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
      const AdamWOptions options{.learning_rate = 1e-3};
      const auto checkpoints_of = [&](MixedTraining& training) {
        CheckpointerOptions of_checkpoints;
        of_checkpoints.directory = scratch.path() / std::to_string(static_cast<int>(sharding));
        Checkpointer checkpoints(world, of_checkpoints);
        checkpoints.add(training.tensors.parameters());
        checkpoints.add(training.optimizer);
        return checkpoints;
      };
      MixedTraining uninterrupted(world, options, sharding);
      uninterrupted.train(0, 6);
      {
        Checkpointer checkpoints = checkpoints_of(uninterrupted);
        checkpoints.save(6);
        checkpoints.wait();
      }
      uninterrupted.train(6, 12);
      MixedTraining resumed(world, options, sharding);
      if (!checkpoints_of(resumed).load()) return "nothing to load";
      resumed.train(6, 12);
      if (resumed.bits() != uninterrupted.bits()) return "other bits";
      std::string masters;
      for (const auto& shard : resumed.optimizer.shards()) {
        if (shard.name == "optimizer.p0.master" && shard.values.type == DataType::float32) masters = "masters";
        if (shard.name == "optimizer.p1.master") return "a master of float32";
      }
      return masters;
    });
    EXPECT_THAT(results, Each("masters"));
  }
}

// The scale is a power of two, so that no bit depends on it, but for what is too small for a float16.
TEST(MasterWeights, AllRanksLeaveOutAStepWithAnInfiniteGradient) {
  for (const Sharding sharding : kShardings) {
    const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
      const SgdOptions options{.learning_rate = 0.01, .momentum = 0.9};
      MixedTraining plain(world, options, sharding), scaled(world, options, sharding);
      LossScaler scaler(world, {.scale = 256, .growth_interval = 1000});
      plain.train(0, 6);
      std::string steps;
      for (int i = 0; i < 6; ++i) {
        if (i == 3) {
          scaled.add_gradients(100, world.rank() == 1 ? 1e9F : 1);  // infinite in float16 only
          if (scaler.unscale(scaled.optimizer)) return "an infinite gradient was taken";
          steps += "-";
        }
        scaled.add_gradients(i, static_cast<float>(scaler.scale()));
        if (!scaler.unscale(scaled.optimizer)) return "a finite gradient was refused";
        EXPECT_NEAR(scaled.optimizer.clip_gradients_by_norm(1e6), 22, 2);
        scaled.optimizer.step();
        steps += "+";
      }
      EXPECT_EQ(scaler.scale(), 128);
      const bool is_same = scaled.bits(DataType::float16) == plain.bits(DataType::float16);
      return steps + (is_same ? " same " : " other ") + scaled.bits();
    });
    EXPECT_EQ(results[0].substr(0, 13), "+++-+++ same ");
    EXPECT_THAT(results, Each(results[0]));
  }
}

struct OneTensor {
  explicit OneTensor(DataType type) : values{memory.data(), memory.size(), type} {}
  std::vector<Parameter> parameters() const { return {{"p", {5}, values}}; }

  std::vector<std::uint16_t> memory = std::vector<std::uint16_t>(5);
  MemoryRange values;
};

std::string step_text(DistributedDataParallel& model, const std::vector<float>& gradients) {
  auto step = model.begin_step();
  for (std::size_t i = 0; i < gradients.size(); ++i) store(model.gradient(0), i, gradients[i]);
  step.ready(0);
  step.finish();
  std::ostringstream text;
  for (std::size_t i = 0; i < gradients.size(); ++i) text << load(model.gradient(0), i) << " ";
  return text.str();
}

std::string gradients_of(DistributedDataParallel& model) {
  std::ostringstream text;
  for (std::size_t i = 0; i < 5; ++i) text << load(model.gradient(0), i) << " ";
  return text.str();
}

TEST(HalfGradients, AreAveragedScaledAndClipped) {
  for (const DataType type : {DataType::float16, DataType::bfloat16}) {
    const auto results = results_of_ranks(2, [type](ProcessGroup world) {
      OneTensor tensor(type);
      DistributedDataParallel model(world, tensor.parameters());
      std::string text = step_text(model, {6.0F * static_cast<float>(world.rank()), -4, 0, 0, 0}) + "|";
      text += std::to_string(std::lround(gradient_norm(model))) + " ";
      clip_gradients_by_norm(model, 2.5);
      text += gradients_of(model) + "|";
      clip_gradients_by_value(model, 1.75);
      text += gradients_of(model) + "|";
      LossScaler scaler(world, {.scale = 4});
      text += scaler.unscale(model) ? "good " : "bad ";
      text += gradients_of(model);
      step_text(model, {world.rank() == 1 ? std::numeric_limits<float>::infinity() : 1});
      return text + (scaler.unscale(model) ? "good" : "bad");
    });
    EXPECT_THAT(results, Each("3 -4 0 0 0 |5 1.5 -2 0 0 0 |1.5 -1.75 0 0 0 |good 0.375 -0.4375 0 0 0 bad"));
  }
}

TEST(HalfGradients, AreClippedToWhatIsNotAboveTheLimit) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    OneTensor tensor(DataType::float16);
    DistributedDataParallel model(world, tensor.parameters());
    const float infinity = std::numeric_limits<float>::infinity();
    step_text(model, {infinity, -infinity, 3, 0.25F, -1});
    clip_gradients_by_value(model, 1e6);
    std::string text = gradients_of(model) + "|";
    clip_gradients_by_value(model, 2.0009);  // between 2 and the next number, nearer to that
    return text + gradients_of(model);
  });
  EXPECT_THAT(results, Each("65504 -65504 3 0.25 -1 |2 -2 2 0.25 -1 "));
}

TEST(HalfGradients, ThatAreNotFiniteAreNamed) {
  for (const DataType type : {DataType::float16, DataType::bfloat16}) {
    const auto results = results_of_ranks(2, [type](ProcessGroup world) -> std::string {
      OneTensor tensor(type);
      DistributedDataParallelOptions options;
      options.check_finite = true;
      DistributedDataParallel model(world, tensor.parameters(), options);
      try {
        step_text(model, {1, 2, 3, 4, world.rank() == 1 ? std::nanf("") : 5});
      } catch (const GradientError& error) {
        const std::string what = error.what();
        return what.substr(0, what.find('\n')) + "; " + step_text(model, {1, 2, 3, 4, 60000});
      }
      return "no error";
    });
    const char* const largest = type == DataType::float16 ? "60000" : "59904";
    EXPECT_THAT(results, Each(std::string("the gradient of parameter p is infinite or NaN on rank 1; 1 2 3 4 ") +
                              largest + " "));
  }
}

}  // namespace
}  // namespace ddp
