// The kernels of examples/train_mlp_cuda against plain loops over host memory, where these must agree to the bit and
// where they may round otherwise. Sizes are around those of a block and of a grid.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "examples/train_mlp_cuda/device.hpp"
#include "examples/train_mlp_cuda/kernels.hpp"
#include "tests/fake_gpu/host_kernels.hpp"

namespace train {
namespace {

constexpr std::size_t kBeyondOneGrid = 65'535UL * 256 + 1;
constexpr std::size_t kCounts[] = {1, 2, 31, 255, 256, 257, 10'007, kBeyondOneGrid};

template <class T>
std::vector<T> read(const DeviceArray<T>& array) {
  std::vector<T> values(array.size());
  check(cudaMemcpy(values.data(), array.data(), array.bytes(), cudaMemcpyDeviceToHost), "copying to the host");
  return values;
}

// Also where both are not a number, which == denies.
template <class T>
void expect_same_bits(const DeviceArray<T>& device, const std::vector<T>& host) {
  const std::vector<T> values = read(device);
  ASSERT_EQ(values.size(), host.size());
  for (std::size_t i = 0; i < host.size(); ++i) {
    ASSERT_EQ(std::memcmp(&values[i], &host[i], sizeof(T)), 0)
        << "at " << i << ": " << values[i] << ", not " << host[i];
  }
}

void expect_near(const DeviceArray<float>& device, const std::vector<float>& host, float relative, float absolute) {
  const std::vector<float> values = read(device);
  ASSERT_EQ(values.size(), host.size());
  for (std::size_t i = 0; i < host.size(); ++i) {
    ASSERT_NEAR(values[i], host[i], absolute + relative * std::fabs(host[i])) << "at " << i;
  }
}

// Multiples of 1/64 up to 1 either way: sums of up to 100,000 of them are exact in any order.
std::vector<float> random_floats(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 129) - 64) / 64;
  return values;
}

template <class T>
std::vector<T> random_below(std::size_t count, std::size_t end, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(random() % end);
  return values;
}

class Kernels : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
      GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
    }
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }
  void TearDown() override {
    if (stream_ != nullptr) check(cudaStreamDestroy(stream_), "ending a stream");
  }
  void finish() const { check(cudaStreamSynchronize(stream_), "waiting for a stream"); }

  cudaStream_t stream_ = nullptr;
};

TEST_F(Kernels, Gather) {
  const struct { std::size_t count, width; } cases[] = {{1, 1}, {3, 5}, {257, 31}, {4'097, 4'099}};
  for (const auto& [count, width] : cases) {
    SCOPED_TRACE(std::to_string(count) + " rows of " + std::to_string(width));
    constexpr std::size_t kAll = 100;
    const auto all = random_floats(kAll * width, 1);
    const auto all_labels = random_below<int>(kAll, 1'000, 2);
    const auto indices = random_below<std::int64_t>(count, kAll, 3);
    std::vector<float> rows(count * width);
    std::vector<int> labels(count);
    const DeviceArray<float> device_all(all), device_rows(rows.size());
    const DeviceArray<int> device_all_labels(all_labels), device_labels(count);
    const DeviceArray<std::int64_t> device_indices(indices);
    host_kernels::gather(all.data(), all_labels.data(), indices.data(), count, width, rows.data(), labels.data());
    kernels::gather(device_all.data(), device_all_labels.data(), device_indices.data(), count, width,
                    device_rows.data(), device_labels.data(), stream_);
    finish();
    expect_same_bits(device_rows, rows);
    expect_same_bits(device_labels, labels);
  }
}

TEST_F(Kernels, AddBias) {
  const struct { std::size_t rows, width; } cases[] = {{1, 1}, {3, 5}, {257, 31}, {4'097, 4'099}};
  for (const bool relu : {false, true}) {
    for (const auto& [rows, width] : cases) {
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(width) + (relu ? ", relu" : ""));
      auto values = random_floats(rows * width, 1);
      const auto bias = random_floats(width, 2);
      values.front() = NAN;  // a training that has gone astray must show
      const DeviceArray<float> device_values(values), device_bias(bias);
      host_kernels::add_bias(values.data(), bias.data(), rows, width, relu);
      kernels::add_bias(device_values.data(), device_bias.data(), rows, width, relu, stream_);
      finish();
      EXPECT_TRUE(std::isnan(read(device_values).front()));
      auto device = read(device_values);
      device.front() = values.front() = 0;
      ASSERT_EQ(device, values);
    }
  }
}

TEST_F(Kernels, SoftmaxCrossEntropy) {
  const struct {
    std::size_t rows, classes;
    float scale;
  } cases[] = {{1, 1, 10},   {1, 2, 10},      {7, 3, 10},      {33, 256, 10},
               {5, 257, 10}, {2, 65'536, 10}, {65'537, 3, 10}, {9, 5, 1e4F}};
  for (const auto& [rows, classes, scale] : cases) {
    SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(classes) + " times " + std::to_string(scale));
    auto logits = random_floats(rows * classes, 1);
    for (float& logit : logits) logit *= scale;
    const auto labels = random_below<int>(rows, classes, 2);
    std::vector<float> losses(rows);
    const DeviceArray<float> device_logits(logits), device_losses(rows);
    const DeviceArray<int> device_labels(labels);
    host_kernels::softmax_cross_entropy(logits.data(), labels.data(), rows, classes, losses.data());
    kernels::softmax_cross_entropy(device_logits.data(), device_labels.data(), rows, classes, device_losses.data(),
                                   stream_);
    finish();
    expect_near(device_losses, losses, 1e-5F, 1e-5F);
    expect_near(device_logits, logits, 1e-5F, 1e-5F / static_cast<float>(rows));
  }
}

TEST_F(Kernels, AddMeanAddsTheSameBitsEachTime) {
  for (const std::size_t count : {1UL, 2UL, 255UL, 256UL, 257UL, 100'000UL}) {
    SCOPED_TRACE(count);
    const auto values = random_floats(count, 1);
    std::vector<double> total{0.5};
    const DeviceArray<float> device_values(values);
    const DeviceArray<double> device_total(total);
    for (int i = 0; i < 2; ++i) {
      host_kernels::add_mean(values.data(), count, total.data());
      kernels::add_mean(device_values.data(), count, device_total.data(), stream_);
    }
    finish();
    expect_same_bits(device_total, total);
  }
}

// With so few different values many rows have their greatest one twice: the first counts.
TEST_F(Kernels, CountRight) {
  const struct { std::size_t rows, classes; } cases[] = {{1, 1}, {1, 7}, {257, 3}, {10'007, 40}, {70'001, 2}};
  for (const auto& [rows, classes] : cases) {
    SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(classes));
    const auto logits = random_floats(rows * classes, 1);
    const auto labels = random_below<int>(rows, classes, 2);
    std::vector<unsigned> right{3};
    const DeviceArray<float> device_logits(logits);
    const DeviceArray<int> device_labels(labels);
    const DeviceArray<unsigned> device_right(right);
    host_kernels::count_right(logits.data(), labels.data(), rows, classes, right.data());
    kernels::count_right(device_logits.data(), device_labels.data(), rows, classes, device_right.data(), stream_);
    finish();
    expect_same_bits(device_right, right);
  }
}

TEST_F(Kernels, ThroughRelu) {
  for (const std::size_t count : kCounts) {
    SCOPED_TRACE(count);
    auto gradients = random_floats(count, 1);
    const auto activations = random_floats(count, 2);
    const DeviceArray<float> device_gradients(gradients), device_activations(activations);
    host_kernels::through_relu(gradients.data(), activations.data(), count);
    kernels::through_relu(device_gradients.data(), device_activations.data(), count, stream_);
    finish();
    expect_same_bits(device_gradients, gradients);
  }
}

TEST_F(Kernels, SumColumns) {
  const struct { std::size_t rows, width; } cases[] = {{1, 1}, {1'000, 1}, {3, 257}, {513, 255}, {1, kBeyondOneGrid}};
  for (const auto& [rows, width] : cases) {
    SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(width));
    const auto values = random_floats(rows * width, 1);
    std::vector<float> sums(width);
    const DeviceArray<float> device_values(values), device_sums(width);
    host_kernels::sum_columns(values.data(), rows, width, sums.data());
    kernels::sum_columns(device_values.data(), rows, width, device_sums.data(), stream_);
    finish();
    expect_same_bits(device_sums, sums);
  }
}

TEST_F(Kernels, Descend) {
  for (const std::size_t count : kCounts) {
    SCOPED_TRACE(count);
    auto values = random_floats(count, 1), velocities = random_floats(count, 2);
    const auto gradients = random_floats(count, 3);
    const DeviceArray<float> device_values(values), device_velocities(velocities), device_gradients(gradients);
    host_kernels::descend(values.data(), velocities.data(), gradients.data(), count, 0.1F, 0.9F);
    kernels::descend(device_values.data(), device_velocities.data(), device_gradients.data(), count, 0.1F, 0.9F,
                     stream_);
    finish();
    expect_near(device_velocities, velocities, 0, 1e-6F);
    expect_near(device_values, values, 0, 1e-6F);
  }
}

TEST_F(Kernels, FillUniformDependsOnSeedAndIndexOnly) {
  for (const std::size_t count : kCounts) {
    SCOPED_TRACE(count);
    std::vector<float> values(count);
    const DeviceArray<float> device_values(count);
    host_kernels::fill_uniform(values.data(), count, 0.3F, 42);
    kernels::fill_uniform(device_values.data(), count, 0.3F, 42, stream_);
    finish();
    expect_same_bits(device_values, values);
  }
}

TEST_F(Kernels, FillLabels) {
  for (const int classes : {1, 3, 65'536}) {
    SCOPED_TRACE(classes);
    constexpr std::size_t kCount = 10'007;
    std::vector<int> labels(kCount);
    const DeviceArray<int> device_labels(kCount);
    host_kernels::fill_labels(labels.data(), kCount, classes, 42);
    kernels::fill_labels(device_labels.data(), kCount, classes, 42, stream_);
    finish();
    expect_same_bits(device_labels, labels);
  }
}

}  // namespace
}  // namespace train
