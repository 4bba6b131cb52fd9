// What is done with all gradients of a model, over the stand-in and on a GPU: the same as in host memory.
#include <ddp/checkpointer.hpp>
#include <ddp/gradient_compression.hpp>
#include <ddp/gradient_scaling.hpp>
#include <ddp/sharded_optimizer.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tests/nccl/both_backends.hpp"
#include "tests/nccl/gate.hpp"
#include "tests/nccl/rank.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::nccl_test {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::thrown_by;

constexpr std::size_t kCounts[] = {1'000, 33, 10};
constexpr DataType kTypes[] = {DataType::float32, DataType::bfloat16, DataType::float64};
constexpr std::size_t kParameters = 3;

// A model of three types on the device of its group, and steps whose gradients are given as doubles.
class Model {
 public:
  using Prepare = std::function<void(const std::vector<Parameter>&, DistributedDataParallelOptions&)>;

  explicit Model(ProcessGroup& group, DistributedDataParallelOptions options = {}, std::size_t parameters = kParameters,
                 const Prepare& prepare = nullptr)
      : device_(group.device()), stream_(options.collective.stream) {
    std::vector<Parameter>& all = parameters_;
    for (std::size_t i = 0; i < parameters; ++i) {
      const std::size_t bytes = kCounts[i] * size_of(kTypes[i]);
      void* memory = nullptr;
      if (device_.kind == Device::Kind::cpu) {
        memory = host_.emplace_back(bytes).data();
      } else {
        memory = on_gpu_.emplace_back(device_, std::vector<std::int8_t>(bytes)).range().data;
      }
      all.push_back(
          {"p" + std::to_string(i), {static_cast<std::int64_t>(kCounts[i])}, {memory, kCounts[i], kTypes[i], device_}});
    }
    if (prepare) prepare(all, options);
    model_.emplace(group, all, options);
  }

  DistributedDataParallel& operator*() { return *model_; }

  // Gradient k of parameter i is value(i, k). A parameter that is left out is not ready.
  void step(const std::function<double(std::size_t, std::size_t)>& value, Sync sync = Sync::on,
            std::optional<std::size_t> left_out = {}) {
    auto step = model_->begin_step(sync);
    for (std::size_t i = model_->parameter_count(); i-- > 0;) {
      if (i == left_out) continue;
      write(i, value);
      step.ready(i);
    }
    step.finish();
  }

  void write(std::size_t parameter, const std::function<double(std::size_t, std::size_t)>& value) {
    std::vector<std::byte> bytes(kCounts[parameter] * size_of(kTypes[parameter]));
    for (std::size_t k = 0; k < kCounts[parameter]; ++k) set(bytes, parameter, k, value(parameter, k));
    copy(model_->gradient(parameter).data, bytes.data(), bytes.size());
  }

  // Of all parameters, one after the other.
  std::vector<double> gradients() {
    return read([this](std::size_t i) { return model_->gradient(i); });
  }
  std::vector<double> values() {
    return read([this](std::size_t i) { return parameters_[i].values; });
  }

 private:
  std::vector<double> read(const std::function<MemoryRange(std::size_t)>& range_of) {
    std::vector<double> all;
    for (std::size_t i = 0; i < model_->parameter_count(); ++i) {
      std::vector<std::byte> bytes(kCounts[i] * size_of(kTypes[i]));
      copy(bytes.data(), range_of(i).data, bytes.size());
      for (std::size_t k = 0; k < kCounts[i]; ++k) all.push_back(get(bytes, i, k));
    }
    return all;
  }
  void copy(void* to, const void* from, std::size_t bytes) const {
    if (device_.kind == Device::Kind::cpu) {
      std::memcpy(to, from, bytes);
      return;
    }
    const auto stream = static_cast<cudaStream_t>(stream_);
    EXPECT_EQ(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  static void set(std::vector<std::byte>& bytes, std::size_t parameter, std::size_t index, double value) {
    const auto as_float = static_cast<float>(value);
    if (kTypes[parameter] == DataType::float64) {
      std::memcpy(bytes.data() + index * 8, &value, 8);
    } else if (kTypes[parameter] == DataType::float32) {
      std::memcpy(bytes.data() + index * 4, &as_float, 4);
    } else {  // the upper half
      std::memcpy(bytes.data() + index * 2, reinterpret_cast<const char*>(&as_float) + 2, 2);
    }
  }
  static double get(const std::vector<std::byte>& bytes, std::size_t parameter, std::size_t index) {
    float as_float = 0;
    double value = 0;
    if (kTypes[parameter] == DataType::float64) {
      std::memcpy(&value, bytes.data() + index * 8, 8);
      return value;
    }
    if (kTypes[parameter] == DataType::float32) {
      std::memcpy(&as_float, bytes.data() + index * 4, 4);
    } else {
      std::memcpy(reinterpret_cast<char*>(&as_float) + 2, bytes.data() + index * 2, 2);
    }
    return static_cast<double>(as_float);
  }

  Device device_;
  void* stream_;
  std::vector<Parameter> parameters_;
  std::deque<Array<std::int8_t>> on_gpu_;
  std::deque<std::vector<std::byte>> host_;
  std::optional<DistributedDataParallel> model_;
};

// Multiples of 1/64, so that bfloat16 holds them, and that sums of squares are exact in any order.
double small_number(std::size_t parameter, std::size_t index) {
  return static_cast<double>((index * 7 + parameter * 5) % 129) / 64 - 1;
}

TEST(Gradients, AreClippedAsInHostMemory) {
  expect_the_same_on_both([](ProcessGroup& group, Seen& seen) {
    Model model(group);
    model.step(small_number);
    const double norm = gradient_norm(*model);
    EXPECT_GT(norm, 10);
    seen.add(norm);
    seen.add(clip_gradients_by_norm(*model, 100));
    seen.add(model.gradients());
    seen.add(clip_gradients_by_norm(*model, 3));
    seen.add(model.gradients());
    clip_gradients_by_value(*model, 0.0625);
    seen.add(model.gradients());
    EXPECT_NEAR(clip_gradients_by_norm(*model, 1e9), gradient_norm(*model), 1e-6);
  });
}

TEST(Gradients, WithoutAFiniteNormAreLeftAlone) {
  expect_the_same_on_both([](ProcessGroup& group, Seen& seen) {
    Model model(group);
    model.step([](std::size_t i, std::size_t k) { return i == 1 && k == 3 ? HUGE_VAL : small_number(i, k); });
    seen.add(clip_gradients_by_norm(*model, 1));
    seen.add(model.gradients());
  });
}

TEST(Gradients, AreUnscaledOnAllRanksOrOnNone) {
  expect_the_same_on_both([](ProcessGroup& group, Seen& seen) {
    Model model(group);
    LossScaler scaler(group, {.scale = 1024, .growth_interval = 2});
    for (int step = 0; step < 4; ++step) {
      const bool is_bad = step == 1 && group.rank() == group.size() - 1;
      model.step(
          [&](std::size_t i, std::size_t k) { return is_bad && i == 0 && k == 999 ? HUGE_VAL : small_number(i, k); });
      seen.add(scaler.unscale(*model) ? 1 : 0);
      seen.add(scaler.scale());
      if (step < 2) seen.add(model.gradients());
    }
  });
}

// The sums of a NaN are left out above: which NaN comes of it is the device's own.
TEST(Gradients, OfANanAreNotUnscaled) {
  run_ranks(2, [](int rank) {
    auto group = join();
    Model model(group);
    LossScaler scaler(group);
    model.step([&](std::size_t i, std::size_t k) { return rank == 1 && i == 1 && k == 32 ? NAN : 1; });
    EXPECT_FALSE(scaler.unscale(*model));
    EXPECT_EQ(scaler.scale(), 32768);
    EXPECT_EQ(model.gradients().front(), 1);
    group.barrier();
  });
}

// With numbers whose sums 16 bits hold, the means are those of the host.
TEST(Gradients, OfACompressedAllReduceAreTheHosts) {
  for (const DataType type : {DataType::bfloat16, DataType::float16}) {
    SCOPED_TRACE(name_of(type));
    expect_the_same_on_both([type](ProcessGroup& group, Seen& seen) {
      DistributedDataParallelOptions options;
      options.communication_hook = compressed_all_reduce({.type = type});
      Model model(group, options, 1);
      const int rank = group.rank();
      for (int step = 0; step < 3; ++step) {
        model.step([&](std::size_t, std::size_t k) {  // the float32 below is rounded away
          return static_cast<double>((static_cast<int>(k) + 3 * rank + step) % 31) / 16 + 1 +
                 (k % 2 == 0 ? 0x1p-20 : 0);
        });
        seen.add(model.gradients());
        EXPECT_EQ(std::fmod(model.gradients()[0] * 32, 1), 0);
      }
      model.step([&](std::size_t, std::size_t k) { return k == 7 && rank == 0 ? HUGE_VAL : 1; });
      seen.add(model.gradients());
    });
  }
}

// float32 and bfloat16; clipped, unscaled, left out because of a NaN, and with buckets that are rebuilt.
Case trained_by(std::variant<AdamWOptions, SgdOptions> optimizer_options, Sharding sharding) {
  return [=](ProcessGroup& group, Seen& seen) {
    std::optional<ShardedOptimizer> optimizer;
    Model model(group, {}, 2, [&](const std::vector<Parameter>& parameters, DistributedDataParallelOptions& options) {
      optimizer.emplace(group, parameters, optimizer_options, sharding);
      optimizer->prepare(options);
    });
    for (std::size_t step = 0; step < 4; ++step) {
      optimizer->wait();
      model.step([&](std::size_t i, std::size_t k) { return small_number(i, k + step) * (group.rank() + 1); });
      if (step == 1) seen.add(optimizer->clip_gradients_by_norm(3));
      if (step == 2) seen.add(optimizer->unscale_gradients(2) ? 1 : 0);
      if (step >= 2) optimizer->clip_gradients_by_value(0.5);
      optimizer->step();
      if (step == 2) (*model).rebuild_buckets();
    }
    model.step([&](std::size_t i, std::size_t k) { return group.rank() == 0 && i == 1 && k == 32 ? NAN : 1; });
    seen.add(optimizer->unscale_gradients(2) ? 1 : 0);
    optimizer->wait();
    const std::vector<double> values = model.values();
    EXPECT_NE(values.front(), 0);
    EXPECT_NE(values.back(), 0);
    seen.add(values);
    std::size_t own = 0;
    for (const ShardedOptimizer::Shard& shard : optimizer->shards()) {
      EXPECT_EQ(shard.values.device, group.device());
      own += shard.values.count;
    }
    seen.add(sharding == Sharding::none ? static_cast<double>(own) : 0);  // else ranks own different parts
  };
}

TEST(Gradients, OfAnOptimizerUpdateParametersAsInHostMemory) {
  for (const Sharding sharding : {Sharding::none, Sharding::optimizer}) {
    SCOPED_TRACE(static_cast<int>(sharding));
    expect_the_same_on_both(trained_by(AdamWOptions{.learning_rate = 0.1}, sharding));
    expect_the_same_on_both(trained_by(SgdOptions{.momentum = 0.9, .nesterov = true}, sharding));
    expect_the_same_on_both(trained_by(SgdOptions{.weight_decay = 0.1}, sharding));
  }
}

// The ranks learn of it one step later: the optimizer has used the gradients by then.
TEST(Gradients, ThatOneRankAloneHasFrozenLeaveParametersAndOptimizersAlike) {
  for (const Sharding sharding : {Sharding::none, Sharding::optimizer}) {
    SCOPED_TRACE(static_cast<int>(sharding));
    const auto seen = seen_on("nccl", 2, [sharding](ProcessGroup& group, Seen& seen) {
      std::optional<ShardedOptimizer> optimizer;
      Model model(group, {}, 2, [&](const std::vector<Parameter>& parameters, DistributedDataParallelOptions& options) {
        optimizer.emplace(group, parameters, AdamWOptions{.learning_rate = 0.1}, sharding);
        optimizer->prepare(options);
      });
      const auto step = [&](bool is_frozen) {
        model.step(small_number, Sync::on, is_frozen ? std::optional<std::size_t>(1) : std::nullopt);
        optimizer->step();
      };
      step(false);
      const bool is_frozen = group.rank() == 0;
      (*model).set_frozen(1, is_frozen);
      step(is_frozen);
      EXPECT_TRUE(thrown_by<MismatchError>([&] { step(is_frozen); }));
      optimizer->wait();
      seen.add(model.values());
      const Span<std::int64_t> steps = optimizer->steps().values.as<std::int64_t>();
      EXPECT_EQ(std::vector<std::int64_t>(steps.begin(), steps.end()), (std::vector<std::int64_t>{2, 2}));
    });
    EXPECT_THAT(seen[1], ElementsAreArray(seen[0]));
  }
}

TEST(Gradients, AreDividedByTheRanksThatHaveInputs) {
  expect_the_same_on_both(
      [](ProcessGroup& group, Seen& seen) {
        Model model(group, {.uneven_inputs = UnevenInputs::divide_by_active});
        model.step(small_number);
        if (group.rank() == 0) {
          model.step(small_number);
          const std::vector<double> gradients = model.gradients();
          EXPECT_EQ(gradients[1], small_number(0, 1)) << "not half of it";
        }
        (*model).join();
        seen.add(group.rank());
      },
      false);
}

TEST(Gradients, OfAHookAreDividedByTheRanksThatHaveInputs) {
  expect_the_same_on_both(
      [](ProcessGroup& group, Seen& seen) {
        DistributedDataParallelOptions options;
        options.communication_hook = compressed_all_reduce();
        options.uneven_inputs = UnevenInputs::divide_by_active;
        Model model(group, options, 1);
        const auto numbers = [](std::size_t, std::size_t k) { return static_cast<double>(k % 16); };
        model.step(numbers);
        if (group.rank() == 0) {
          model.step(numbers);
          EXPECT_EQ(model.gradients()[15], 15) << "not half of it";
        }
        (*model).join();
        seen.add(group.rank());
      },
      false);
}

TEST(Gradients, ThatNoRankUsesStayAsTheyAre) {
  expect_the_same_on_both([](ProcessGroup& group, Seen& seen) {
    DistributedDataParallelOptions options;
    options.unused = Unused::keep;
    options.zero_gradients = false;
    Model model(group, options);
    for (int step = 0; step < 2; ++step) {
      const double own = group.rank() + step + 1;
      model.write(1, [&](std::size_t, std::size_t k) { return own * static_cast<double>(k % 4); });
      model.step([](std::size_t, std::size_t) { return 2; }, Sync::on, 1);
      EXPECT_TRUE((*model).is_unused(1));
      EXPECT_EQ(model.gradients()[kCounts[0] + 3], own * 3);
      EXPECT_EQ(model.gradients()[0], 2);
    }
    seen.add(model.gradients()[kCounts[0]]);
  });
}

TEST(Gradients, ThatAreNotFiniteAreNamedOnEveryRank) {
  run_ranks(2, [](int rank) {
    auto group = join();
    DistributedDataParallelOptions options;
    options.check_finite = true;
    Model model(group, options);
    const auto numbers = [&](double bad, int of_rank) {
      return
          [=](std::size_t i, std::size_t k) { return rank == of_rank && i == 1 && k == 32 ? bad : small_number(i, k); };
    };
    const auto message = [](const std::function<void()>& call) -> std::string {
      const auto error = thrown_by<GradientError>(call);
      return error ? error->what() : "";
    };
    const std::string text = "the gradient of parameter p1 is infinite or NaN on rank ";
    EXPECT_THAT(message([&] { model.step(numbers(HUGE_VAL, 1)); }), HasSubstr(text + "1\n"));
    model.step(numbers(NAN, 2));  // no rank's
    // In a micro-batch whose gradient is written over.
    model.step(numbers(NAN, 0), Sync::off);
    EXPECT_THAT(message([&] { model.step(numbers(NAN, 2)); }), HasSubstr(text + "0\n"));
    // A cancelled window tells nothing.
    {
      auto step = (*model).begin_step();
      model.write(1, [](std::size_t, std::size_t) { return NAN; });
      step.ready(1);
      step.cancel();
    }
    model.step(numbers(NAN, 2));
    EXPECT_EQ(model.gradients()[1], small_number(0, 1));
    group.barrier();
  });
}

// All state is on the GPU, half of the optimizer's on each rank; a checkpoint of it, on disk or in memory, has the
// bits.
TEST(Gradients, FromACheckpointOnGoOnWithTheSameBits) {
  for (const bool is_in_memory : {false, true}) {
    SCOPED_TRACE(is_in_memory ? "in memory" : "on disk");
    const test::ScratchDirectory scratch;
    run_ranks(2, [&](int) {
      auto group = join(testing::kPatience, {.backend = "cpu:cpu,cuda:nccl"});
      CheckpointMemory memory;
      const auto train = [&](std::size_t from, std::size_t until, bool saves) {
        CheckpointerOptions where;
        if (is_in_memory) where.memory = &memory;
        if (!is_in_memory) where.directory = scratch.path();
        Checkpointer checkpoints(group, where);
        std::optional<ShardedOptimizer> optimizer;
        Model model(group, {}, 2,
                    [&](const std::vector<Parameter>& parameters, DistributedDataParallelOptions& options) {
                      optimizer.emplace(group, parameters, AdamWOptions{.learning_rate = 0.1}, Sharding::optimizer);
                      optimizer->prepare(options);
                      checkpoints.add(parameters);
                    });
        checkpoints.add(*optimizer);
        if (from > 0) {
          const auto loaded = checkpoints.load();
          EXPECT_TRUE(loaded && loaded->step == from && loaded->is_from_memory == is_in_memory);
        }
        for (std::size_t step = from; step < until; ++step) {
          optimizer->wait();
          model.step([&](std::size_t i, std::size_t k) { return small_number(i, k + step) * (group.rank() + 1); });
          optimizer->step();
        }
        if (saves) checkpoints.save(until), checkpoints.wait();
        optimizer->wait();
        return model.values();
      };
      const std::vector<double> whole = train(0, 6, false), half = train(0, 3, true), resumed = train(3, 6, false);
      EXPECT_NE(half, whole);
      EXPECT_EQ(resumed, whole);
      group.barrier();
    });
  }
}

TEST(Gradients, AreNotDividedOnAGpu) {
  run_ranks(1, [](int) {
    auto group = join();
    const Array<float> values(group.device(), 10);
    const std::vector<Parameter> parameters{{"p", {10}, values.range()}};
    EXPECT_THROW(ShardedOptimizer(group, parameters, AdamWOptions{}, Sharding::gradients), InvalidArgument);
    float on_host = 0;
    const std::vector<Parameter> elsewhere{{"p", {1}, MemoryRange(&on_host, 1, DataType::float32)}};
    EXPECT_THROW(ShardedOptimizer(group, elsewhere, AdamWOptions{}, Sharding::none), InvalidArgument);
  });
}

TEST(Gradients, AreClippedWhileTheHostGoesOn) {
  run_ranks(1, [](int) {
    auto group = join();
    cudaStream_t stream = make_stream();
    {
      DistributedDataParallelOptions options;
      options.collective.stream = stream;
      Model model(group, options);
      model.step(small_number);
      const double norm = gradient_norm(*model);
      EXPECT_EQ(clip_gradients_by_norm(*model, 1e6), norm);
      clip_gradients_by_value(*model, 1e6);  // now all kernels are loaded
      const unsigned long synchronised = host_synchronisations();
      Gate gate;
      gate.close(stream);
      const GradientNorm before = clip_gradients_by_norm(*model, 1);
      clip_gradients_by_value(*model, 0.5);
      const GradientNorm after = gradient_norm(*model);
      static_cast<void>(clip_gradients_by_norm(*model, 0.5));  // nobody asks for it
      EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
      EXPECT_EQ(host_synchronisations(), synchronised);
      gate.open();
      EXPECT_EQ(before.value(), norm);
      EXPECT_EQ(before.value(), norm);
      EXPECT_NEAR(after, 1, 1e-3);
      EXPECT_NEAR(gradient_norm(*model), 0.5, 1e-3);
    }
    group.barrier();
    cudaStreamDestroy(stream);
  });
}

}  // namespace
}  // namespace ddp::nccl_test
