// The network of examples/train_mlp_cuda against the one in plain C++ of examples/train_breast_cancer, from the same
// weights.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "examples/train_breast_cancer/mlp.hpp"
#include "examples/train_mlp_cuda/device_mlp.hpp"

namespace train {
namespace {

template <class T>
std::vector<T> read(const T* data, std::size_t count) {
  std::vector<T> values(count);
  check(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost), "copying to the host");
  return values;
}

Samples random_samples(std::size_t count, std::size_t features, int classes) {
  std::mt19937 random(7);  // NOLINT: the same in every run
  Samples samples{features, {}, {}};
  for (std::size_t i = 0; i < count * features; ++i)
    samples.features.push_back(static_cast<float>(random() % 2'001) / 1'000 - 1);
  for (std::size_t i = 0; i < count; ++i)
    samples.labels.push_back(static_cast<int>(random() % static_cast<unsigned>(classes)));
  return samples;
}

// Both networks, with one set of weights, and the gradients of both.
class TwoNetworks {
 public:
  TwoNetworks(const std::vector<std::size_t>& widths, std::size_t batch_size)
      : host_(widths, 1), device_({widths, batch_size}, 1, false, stream_.get(), spans_) {
    const auto device_parameters = device_.parameters(0);
    host_parameters_ = host_.parameters();
    EXPECT_EQ(device_parameters.size(), host_parameters_.size());
    for (std::size_t p = 0; p < host_parameters_.size(); ++p) {
      const ddp::Parameter& from = device_parameters[p];
      const ddp::Parameter& to = host_parameters_[p];
      EXPECT_EQ(from.name, to.name);
      EXPECT_EQ(from.shape, to.shape);
      stream_.synchronize();
      check(cudaMemcpy(to.values.data, from.values.data, to.values.bytes(), cudaMemcpyDeviceToHost),
            "copying to the host");
      host_gradients_.emplace_back(to.values.count);
      device_gradients_.emplace_back(to.values.count);
      device_pointers_.push_back(device_gradients_.back().data());
    }
    for (auto& gradients : host_gradients_) host_pointers_.push_back(gradients.data());
  }

  // Runs both forward and backward; returns the order in which the device's gradients were ready.
  std::vector<std::size_t> run(const Samples& batch) {
    const DeviceArray<float> features(batch.features);
    const DeviceArray<int> labels(batch.labels);
    const DeviceArray<double> loss(std::vector<double>{0});
    for (auto& gradients : host_gradients_) gradients.assign(gradients.size(), 0);
    const double host_loss = host_.forward(batch);
    host_.backward(host_pointers_, [](std::size_t) {});

    std::vector<std::size_t> order;
    std::vector<DeviceArray<float>> at_ready(device_gradients_.size());
    device_.forward(features.data(), labels.data(), batch.size(), loss.data());
    device_.backward(device_pointers_, [&](std::size_t p) {
      order.push_back(p);
      at_ready[p] = DeviceArray<float>(device_gradients_[p].size());
      check(cudaMemcpyAsync(at_ready[p].data(), device_pointers_[p], at_ready[p].bytes(), cudaMemcpyDeviceToDevice,
                            stream_.get()),
            "copying on the device");
    });
    stream_.synchronize();
    EXPECT_NEAR(read(loss.data(), 1)[0], host_loss, 1e-5);
    for (const std::size_t p : order) expect_gradients(p, read(at_ready[p].data(), at_ready[p].size()));
    return order;
  }

  void descend() {
    device_.descend(device_pointers_, 0.1F, 0.9F);
    stream_.synchronize();
  }
  std::vector<float> parameter(std::size_t p) {
    const auto values = device_.parameters(0)[p].values;
    return read(static_cast<const float*>(values.data), values.count);
  }
  const std::vector<float>& host_gradients(std::size_t p) const { return host_gradients_[p]; }

  unsigned right_on_device(const Samples& batch) {
    const DeviceArray<float> features(batch.features);
    const DeviceArray<int> labels(batch.labels);
    const DeviceArray<unsigned> right(std::vector<unsigned>{0});
    device_.count_right(features.data(), labels.data(), batch.size(), right.data());
    stream_.synchronize();
    return read(right.data(), 1)[0];
  }
  double right_on_host(const Samples& batch) { return host_.accuracy(batch) * static_cast<double>(batch.size()); }

 private:
  void expect_gradients(std::size_t p, const std::vector<float>& values) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], host_gradients_[p][i], 1e-5) << host_parameters_[p].name << "[" << i << "]";
    }
  }

  Stream stream_;
  DeviceSpans spans_{stream_.get()};
  Mlp host_;
  DeviceMlp device_;
  std::vector<ddp::Parameter> host_parameters_;
  std::vector<std::vector<float>> host_gradients_;
  std::vector<float*> host_pointers_;
  std::vector<DeviceArray<float>> device_gradients_;
  std::vector<float*> device_pointers_;
};

class Network : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
      GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
    }
  }
};

// Layers wider and narrower than those beside them, so that a mix-up of two sizes or of two buffers shows.
TEST_F(Network, AgreesWithPlainCppInLossAndGradientsWhichAreReadyFromTheLastToTheFirst) {
  for (const std::vector<std::size_t>& widths :
       {std::vector<std::size_t>{5, 3}, {5, 7, 3}, {4, 9, 2, 6, 3}, {30, 64, 33, 17, 70, 10}}) {
    SCOPED_TRACE(std::to_string(widths.size() - 1) + " layers");
    TwoNetworks networks(widths, 9);
    const auto order = networks.run(random_samples(9, widths.front(), static_cast<int>(widths.back())));
    ASSERT_EQ(order.size(), 2 * (widths.size() - 1));
    for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], order.size() - 1 - i);
  }
}

TEST_F(Network, TakesFewerRowsThanABatch) {
  TwoNetworks networks({5, 7, 6, 3}, 9);
  for (const std::size_t rows : {9, 1, 4}) networks.run(random_samples(rows, 5, 3));
}

TEST_F(Network, DescendsWithMomentum) {
  TwoNetworks networks({5, 4, 3}, 6);
  networks.run(random_samples(6, 5, 3));
  std::vector<std::vector<float>> before;
  for (std::size_t p = 0; p < 4; ++p) before.push_back(networks.parameter(p));
  networks.descend();
  networks.descend();
  for (std::size_t p = 0; p < 4; ++p) {
    const auto after = networks.parameter(p);
    for (std::size_t i = 0; i < after.size(); ++i) {
      const float want = before[p][i] - 0.1F * (1 + 1.9F) * networks.host_gradients(p)[i];
      ASSERT_NEAR(after[i], want, 1e-5) << "parameter " << p << " at " << i;
    }
  }
}

TEST_F(Network, CountsWhatIsRight) {
  TwoNetworks networks({5, 7, 3}, 50);
  const Samples samples = random_samples(50, 5, 3);
  EXPECT_NEAR(networks.right_on_device(samples), networks.right_on_host(samples), 1e-6);
}

}  // namespace
}  // namespace train
