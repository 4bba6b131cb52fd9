// Batch normalisation over the batches of all ranks, over the stand-in and on a GPU: the same as in host memory.
#include <ddp/sync_batch_norm.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/nccl/both_backends.hpp"
#include "tests/nccl/gate.hpp"
#include "tests/nccl/rank.hpp"

namespace ddp::nccl_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::thrown_by;
using Floats = std::vector<float>;

constexpr std::size_t kChannels = 5;

// Floats on the device of a group, or in host memory.
class Values {
 public:
  Values(const ProcessGroup& group, Floats values) : values_(std::move(values)) {
    if (group.device() != Device{}) on_gpu_ = std::make_unique<Array<float>>(group.device(), values_);
  }
  float* data() { return on_gpu_ ? static_cast<float*>(on_gpu_->range().data) : values_.data(); }
  Floats read() const { return on_gpu_ ? on_gpu_->values() : values_; }

 private:
  Floats values_;
  std::unique_ptr<Array<float>> on_gpu_;
};

// Multiples of 1/4: with a power of two of them for each channel, sums, means and variances are exact in any order.
Floats small_numbers(std::size_t count, std::size_t seed) {
  Floats numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>((i * 5 + seed * 3) % 16) / 4;
  return numbers;
}

// A layer of a network on one rank, and steps of it.
struct Layer {
  Layer(ProcessGroup& group_, std::size_t batch, std::size_t points, bool has_parameters_,
        CollectiveOptions options_ = {})
      : group(group_),
        options(options_),
        has_parameters(has_parameters_),
        shape{batch, kChannels, points, group.device()},
        x(group, small_numbers(shape.size(), static_cast<std::size_t>(group.rank()))),
        of_y(group, small_numbers(shape.size(), 7)),
        y(group, Floats(shape.size())),
        of_x(group, Floats(shape.size())),
        weight(group, small_numbers(kChannels, 1)),
        bias(group, small_numbers(kChannels, 2)),
        mean(group, Floats(kChannels)),
        variance(group, Floats(kChannels, 1)),
        of_weight(group, Floats(kChannels)),
        of_bias(group, Floats(kChannels)) {}

  void step() {
    const auto given = [&](Values& values) { return has_parameters ? values.data() : nullptr; };
    sync_batch_norm_forward(group, shape, x.data(), {given(weight), given(bias), given(mean), given(variance)},
                            y.data(), statistics, {.collective = options});
    sync_batch_norm_backward(group, shape, of_y.data(), x.data(), statistics, given(weight), of_x.data(),
                             given(of_weight), given(of_bias), options);
  }

  void show(Seen& seen) const {
    for (const Values* each : {&y, &of_x, &mean, &variance, &of_weight, &of_bias}) {
      for (const float value : each->read()) seen.add(value);
    }
  }

  ProcessGroup group;
  CollectiveOptions options;
  bool has_parameters;
  BatchShape shape;
  Values x, of_y, y, of_x, weight, bias, mean, variance, of_weight, of_bias;
  BatchStatistics statistics;
};

TEST(SyncBatchNormOnAGpu, HasTheBitsOfHostMemoryIfSumsAreExact) {
  for (const std::size_t points : {1U, 2U, 64U}) {
    for (const bool has_parameters : {true, false}) {
      SCOPED_TRACE(std::to_string(points) + " points, parameters: " + std::to_string(has_parameters));
      expect_the_same_on_both(
          [&](ProcessGroup& group, Seen& seen) {
            Layer layer(group, 8, points, has_parameters);
            layer.step();
            layer.step();
            layer.show(seen);
            EXPECT_EQ(layer.statistics.count.device(), group.device());
          },
          false);
    }
  }
}

TEST(SyncBatchNormOnAGpu, TakesARankWithoutSamples) {
  expect_the_same_on_both(
      [](ProcessGroup& group, Seen& seen) {
        Layer layer(group, group.rank() == 0 ? 8 : 0, 64, true);
        layer.step();
        layer.show(seen);
      },
      false);
}

TEST(SyncBatchNormOnAGpu, WorksInPlace) {
  expect_the_same_on_both(
      [](ProcessGroup& group, Seen& seen) {
        Layer layer(group, 4, 4, true);
        sync_batch_norm_forward(group, layer.shape, layer.x.data(), {}, layer.x.data(), layer.statistics);
        for (const float value : layer.x.read()) seen.add(value);
      },
      false);
}

TEST(SyncBatchNormOnAGpu, SaysByNansThatThereIsNoVariance) {
  run_ranks(2, [](int rank) {
    auto group = join();
    Layer layer(group, rank == 0 ? 1 : 0, 1, true);
    layer.step();
    EXPECT_EQ(layer.y.read().size(), rank == 0 ? kChannels : 0);
    for (const float value : layer.y.read()) EXPECT_TRUE(std::isnan(value));
    EXPECT_THAT(layer.mean.read(), Each(0.0F));
    EXPECT_THAT(layer.variance.read(), Each(1.0F));
    group.barrier();
  });
}

TEST(SyncBatchNormOnAGpu, HostGoesOnWithStatisticsThatAreKept) {
  run_ranks(1, [](int) {
    auto group = join();
    connect(group);
    cudaStream_t stream = make_stream();
    {
      Layer layer(group, 8, 64, true, {.stream = stream});
      layer.step();  // now kernels are loaded, and memory is allocated
      const auto* const memory = layer.statistics.memory.get();
      const unsigned long synchronised = host_synchronisations();
      Gate gate;
      gate.close(stream);
      layer.step();
      EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
      EXPECT_EQ(host_synchronisations(), synchronised);
      EXPECT_EQ(layer.statistics.memory.get(), memory);
      gate.open();
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      EXPECT_NE(layer.of_bias.read().front(), 0);
    }
    group.barrier();
    cudaStreamDestroy(stream);
  });
}

TEST(SyncBatchNormOnAGpu, RefusesMemoryThatIsNotTheGroups) {
  run_ranks(1, [](int) {
    auto group = join();
    Layer layer(group, 2, 1, true);
    layer.step();
    BatchShape on_host = layer.shape;
    on_host.device = {};
    Floats x(on_host.size());
    const auto refused = thrown_by<InvalidArgument>(
        [&] { sync_batch_norm_forward(group, on_host, x.data(), {}, x.data(), layer.statistics); });
    EXPECT_THAT(refused ? refused->what() : "", HasSubstr("not in memory of this group"));
    BatchShape wider = layer.shape;
    wider.channels = 2 * kChannels;
    for (const BatchShape& other : {on_host, wider}) {
      EXPECT_THROW(sync_batch_norm_backward(group, other, x.data(), x.data(), layer.statistics, nullptr, x.data(),
                                            nullptr, nullptr),
                   InvalidArgument);
    }
    layer.step();
    group.barrier();
  });
}

// A group of two backends takes both.
TEST(SyncBatchNormOnAGpu, TakesHostMemoryInAGroupOfBoth) {
  run_ranks(2, [](int) {
    auto group = join(testing::kPatience, {.backend = "cpu:cpu,cuda:nccl"});
    const BatchShape shape{2, 1, 1};
    Floats x{1, 3}, y(2);
    BatchStatistics statistics;
    sync_batch_norm_forward(group, shape, x.data(), {}, y.data(), statistics, {.epsilon = 0});
    EXPECT_EQ(y, (Floats{-1, 1}));
    EXPECT_EQ(statistics.count[0], 4);
    group.barrier();
  });
}

}  // namespace
}  // namespace ddp::nccl_test
