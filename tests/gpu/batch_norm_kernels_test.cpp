// The kernels of a batch normalisation against the host's loops: the same bits from the same moments and sums; those
// differ by rounding of doubles.
//
// Each test is a rank of its own, because ranks are forked and CUDA does not live through a fork.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/nccl/rank.hpp"
#include "worker_runtime/backends/nccl/cuda_arithmetic.hpp"
#include "worker_runtime/backends/nccl/nccl_backend.hpp"
#include "worker_runtime/process_group/device_arithmetic.hpp"
#include "worker_runtime/tensor/batch_norm.hpp"

namespace ddp::nccl_test {
namespace {

using process_group::DeviceArithmetic;
using tensor::batch_norm_numbers;
using testing::run_ranks;
using Doubles = std::vector<double>;
using Floats = std::vector<float>;

constexpr Device kGpuOfTest{Device::Kind::cuda, 0};
constexpr std::size_t kRanks = 3, kRank = 1;

// Rows and columns, channels with many points; sizes that vectors fit, and that they don't; one block and many.
constexpr BatchShape kShapes[] = {{3, 5, 1},      {1, 1, 1},       {7, 3, 31},    {4, 2, 32},      {2, 3, 49},
                                  {3, 2, 4'096},  {300, 64, 1},    {1'000, 3, 1}, {40, 1'028, 1},  {33, 260, 4},
                                  {0, 4, 5},      {2, 1, 100'000}, {5, 7, 50},    {64, 16, 3'136}, {4'096, 256, 1},
                                  {20'000, 4, 1}, {1, 3'000, 64}};

// Numbers on the device with others in front and behind, which must stay.
template <class T>
class Guarded {
 public:
  Guarded(const std::vector<T>& values, std::size_t offset)
      : offset_(offset), count_(values.size()), block_(offset + count_ + 8, T{77}) {
    std::copy(values.begin(), values.end(), block_.begin() + static_cast<std::ptrdiff_t>(offset));
    memory_ = std::make_unique<Array<T>>(kGpuOfTest, block_);
  }
  T* data() const { return static_cast<T*>(memory_->range().data) + offset_; }
  std::vector<T> values() const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<T> read = memory_->values();
    const auto begin = read.begin() + static_cast<std::ptrdiff_t>(offset_);
    const auto end = begin + static_cast<std::ptrdiff_t>(count_);
    EXPECT_TRUE(std::all_of(read.begin(), begin, [](T each) { return each == 77; })) << "written in front";
    EXPECT_TRUE(std::all_of(end, read.end(), [](T each) { return each == 77; })) << "written behind";
    return {begin, end};
  }
  void write(const std::vector<T>& values) {
    std::copy(values.begin(), values.end(), block_.begin() + static_cast<std::ptrdiff_t>(offset_));
    memory_->write(block_);
  }

 private:
  std::size_t offset_, count_;
  std::vector<T> block_;
  std::unique_ptr<Array<T>> memory_;
};

Floats random_numbers(std::size_t count, unsigned seed, float offset) {
  std::mt19937 random(seed);
  Floats numbers(count);
  for (float& each : numbers) each = offset + static_cast<float>(random() % 20'001) / 10'000 - 1;
  return numbers;
}

// An array on both.
template <class T>
struct OnBoth {
  OnBoth(std::vector<T> values, std::size_t offset) : host(std::move(values)), device(host, offset) {}
  void expect_same() const {
    const std::vector<T> read = device.values();
    for (std::size_t i = 0; i < host.size(); ++i) ASSERT_EQ(read[i], host[i]) << "number " << i;
  }
  // scale: of what was added up.
  void expect_near(double relative, double scale) const {
    const std::vector<T> read = device.values();
    for (std::size_t i = 0; i < host.size(); ++i) ASSERT_NEAR(read[i], host[i], relative * scale) << "number " << i;
  }
  void device_takes_host() { device.write(host); }

  std::vector<T> host;
  Guarded<T> device;
};

std::shared_ptr<DeviceArithmetic> gpu_arithmetic() {
  static_cast<void>(take_place());
  return nccl_backend::make_cuda_arithmetic(0, nccl_backend::memory_of_device(0));
}

template <class Test>
void for_each_shape(const Test& test) {
  for (const BatchShape& shape : kShapes) {
    for (const std::size_t offset : {0U, 1U}) {
      SCOPED_TRACE("[" + std::to_string(shape.batch) + ", " + std::to_string(shape.channels) + ", " +
                   std::to_string(shape.points) + "], offset " + std::to_string(offset));
      test(shape, offset);
    }
  }
}

// Moments of other ranks, and room for those of this one.
Doubles moments_of_others(std::size_t channels) {
  Doubles all;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    for (std::size_t i = 0; i < batch_norm_numbers(channels); ++i)
      all.push_back(10 + static_cast<double>(rank + i) / 3);
  }
  return all;
}

TEST(BatchNormKernels, ForwardHasTheBitsOfTheHostButForSums) {
  run_ranks(1, [](int) {
    const auto device = gpu_arithmetic();
    const auto host = process_group::host_arithmetic();
    for_each_shape([&](const BatchShape& shape, std::size_t offset) {
      const std::size_t channels = shape.channels;
      OnBoth<float> x(random_numbers(shape.size(), 1, 30), offset), y(Floats(shape.size()), offset);
      OnBoth<float> weight(random_numbers(channels, 2, 1), offset), bias(random_numbers(channels, 3, 0), offset);
      OnBoth<float> mean(Floats(channels), offset), variance(Floats(channels, 1), offset);
      OnBoth<double> moments(moments_of_others(channels), offset);
      OnBoth<double> statistics(Doubles(batch_norm_numbers(channels)), offset);
      tensor::BatchNormForward pass{
          .shape = shape,
          .x = x.host.data(),
          .y = y.host.data(),
          .parameters = {weight.host.data(), bias.host.data(), mean.host.data(), variance.host.data()},
          .epsilon = 1e-5,
          .momentum = 0.1,
          .rank = kRank,
          .ranks = kRanks,
          .moments = moments.host.data(),
          .statistics = statistics.host.data()};
      tensor::BatchNormForward on_gpu = pass;
      on_gpu.shape.device = kGpuOfTest;
      on_gpu.x = x.device.data();
      on_gpu.y = y.device.data();
      on_gpu.parameters = {weight.device.data(), bias.device.data(), mean.device.data(), variance.device.data()};
      on_gpu.moments = moments.device.data();
      on_gpu.statistics = statistics.device.data();
      host->begin_batch_norm(pass, nullptr);
      device->begin_batch_norm(on_gpu, nullptr);
      const auto count = static_cast<double>(std::max<std::size_t>(1, shape.batch * shape.points));
      moments.expect_near(1e-13, 30 * count);
      const Doubles first = moments.device.values();
      device->begin_batch_norm(on_gpu, nullptr);
      EXPECT_EQ(moments.device.values(), first) << "another run gives other bits";
      moments.device_takes_host();
      host->end_batch_norm(pass, nullptr);
      device->end_batch_norm(on_gpu, nullptr);
      statistics.expect_same();
      mean.expect_same();
      variance.expect_same();
      y.expect_same();
      x.expect_same();
      if (shape.size() == 0) return;
      on_gpu.y = x.device.data();  // in place
      pass.y = x.host.data();
      pass.parameters = on_gpu.parameters = {};
      host->end_batch_norm(pass, nullptr);
      device->end_batch_norm(on_gpu, nullptr);
      x.expect_same();
    });
  });
}

TEST(BatchNormKernels, BackwardHasTheBitsOfTheHostButForSums) {
  run_ranks(1, [](int) {
    const auto device = gpu_arithmetic();
    const auto host = process_group::host_arithmetic();
    for_each_shape([&](const BatchShape& shape, std::size_t offset) {
      const std::size_t channels = shape.channels;
      OnBoth<float> x(random_numbers(shape.size(), 1, 30), offset), of_y(random_numbers(shape.size(), 2, 0), offset);
      OnBoth<float> weight(random_numbers(channels, 3, 1), offset), of_x(Floats(shape.size()), offset);
      OnBoth<float> of_weight(Floats(channels, 2), offset), of_bias(Floats(channels, 3), offset);
      Doubles numbers(batch_norm_numbers(channels), 30.1);  // means, inverses of the deviations, the count
      for (std::size_t i = channels; i < 2 * channels; ++i) numbers[i] = 0.5 + static_cast<double>(i) / 1'000;
      numbers.back() = static_cast<double>(3 * shape.batch * shape.points + 2);
      const OnBoth<double> statistics(numbers, offset);
      OnBoth<double> sums(Doubles(2 * channels), offset);
      tensor::BatchNormBackward pass{.shape = shape,
                                     .of_y = of_y.host.data(),
                                     .x = x.host.data(),
                                     .weight = weight.host.data(),
                                     .of_x = of_x.host.data(),
                                     .of_weight = of_weight.host.data(),
                                     .of_bias = of_bias.host.data(),
                                     .statistics = statistics.host.data(),
                                     .sums = sums.host.data()};
      tensor::BatchNormBackward on_gpu = pass;
      on_gpu.shape.device = kGpuOfTest;
      on_gpu.of_y = of_y.device.data();
      on_gpu.x = x.device.data();
      on_gpu.weight = weight.device.data();
      on_gpu.of_x = of_x.device.data();
      on_gpu.of_weight = of_weight.device.data();
      on_gpu.of_bias = of_bias.device.data();
      on_gpu.statistics = statistics.device.data();
      on_gpu.sums = sums.device.data();
      host->begin_batch_norm(pass, nullptr);
      device->begin_batch_norm(on_gpu, nullptr);
      const auto count = static_cast<double>(std::max<std::size_t>(1, shape.batch * shape.points));
      sums.expect_near(1e-13, count);
      of_weight.expect_near(1e-6, 3 * std::sqrt(count));
      of_bias.expect_near(1e-6, 3 * std::sqrt(count));
      sums.device_takes_host();
      host->end_batch_norm(pass, nullptr);
      device->end_batch_norm(on_gpu, nullptr);
      of_x.expect_same();
      on_gpu.of_x = of_y.device.data();  // in place, and without a weight
      pass.of_x = of_y.host.data();
      on_gpu.weight = pass.weight = nullptr;
      host->end_batch_norm(pass, nullptr);
      device->end_batch_norm(on_gpu, nullptr);
      of_y.expect_same();
      x.expect_same();
    });
  });
}

// Elements far from the mean, of which the first is one, take no bits from the variance.
TEST(BatchNormKernels, VarianceIsTheHostsIfTheFirstElementIsFarFromTheMean) {
  run_ranks(1, [](int) {
    const auto device = gpu_arithmetic();
    for (const BatchShape& shape : {BatchShape{64, 2, 4'096}, BatchShape{50'000, 8, 1}}) {
      Floats x = random_numbers(shape.size(), 1, 0);
      for (std::size_t channel = 0; channel < shape.channels; ++channel) x[channel * shape.points] = 1e6F;
      const std::size_t numbers = batch_norm_numbers(shape.channels);
      const OnBoth<float> both(x, 0);
      OnBoth<double> moments(Doubles(numbers), 0);
      const tensor::BatchNormForward pass{.shape = shape, .x = both.host.data(), .moments = moments.host.data()};
      tensor::BatchNormForward on_gpu = pass;
      on_gpu.x = both.device.data();
      on_gpu.moments = moments.device.data();
      process_group::host_arithmetic()->begin_batch_norm(pass, nullptr);
      device->begin_batch_norm(on_gpu, nullptr);
      const Doubles read = moments.device.values();
      for (std::size_t i = shape.channels; i < numbers; ++i) {
        EXPECT_NEAR(read[i], moments.host[i], 1e-9 * moments.host[i]);
      }
    }
  });
}

}  // namespace
}  // namespace ddp::nccl_test
