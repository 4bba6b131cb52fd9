// What the network is trained on, in device memory: the samples once, and of each epoch the order in which this rank
// takes its own. So a step copies nothing from the host.
//
// Threads: one at a time.
#pragma once

#include <ddp/distributed_sampler.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data.hpp"
#include "device.hpp"

namespace train {

class Batches {
 public:
  struct Order {
    std::size_t batch_size = 1;  // of this rank
    int replicas = 1, rank = 0;
    std::uint64_t seed = 0;
  };

  // `samples` in device memory: [count, width] and [count].
  Batches(DeviceArray<float> features, DeviceArray<int> labels, std::size_t width, const Order& order,
          cudaStream_t stream);

  // Begins an epoch; returns how many batches this rank has in it, the same number on all ranks.
  std::size_t begin_epoch(std::uint64_t epoch);

  // Puts batch `index` of the epoch where features() and labels() point, on the stream.
  void load(std::size_t index);
  const float* features() const { return batch_features_.data(); }
  const int* labels() const { return batch_labels_.data(); }

 private:
  DeviceArray<float> features_, batch_features_;
  DeviceArray<int> labels_, batch_labels_;
  std::size_t width_;
  Order order_;
  cudaStream_t stream_;
  ddp::DistributedSampler sampler_;
  DeviceArray<std::int64_t> indices_;  // of the epoch, batch after batch
};

}  // namespace train
