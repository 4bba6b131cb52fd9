#include "batches.hpp"

#include <utility>

#include "kernels.hpp"

namespace train {

Batches::Batches(DeviceArray<float> features, DeviceArray<int> labels, std::size_t width, const Order& order,
                 cudaStream_t stream)
    : features_(std::move(features)),
      batch_features_(order.batch_size * width),
      labels_(std::move(labels)),
      batch_labels_(order.batch_size),
      width_(width),
      order_(order),
      stream_(stream),
      sampler_({.sample_count = labels_.size(),
                .replicas = order.replicas,
                .rank = order.rank,
                .seed = order.seed,
                .drop_last = true}) {}

std::size_t Batches::begin_epoch(std::uint64_t epoch) {
  const auto batches = sampler_.batches(epoch, order_.batch_size, ddp::LastBatch::drop);
  std::vector<std::int64_t> indices;
  for (const auto& batch : batches) indices.insert(indices.end(), batch.begin(), batch.end());
  check(cudaStreamSynchronize(stream_), "waiting for a stream");  // the epoch before may still read its own
  indices_ = DeviceArray<std::int64_t>(indices);
  return batches.size();
}

void Batches::load(std::size_t index) {
  kernels::gather(features_.data(), labels_.data(), indices_.data() + index * order_.batch_size, order_.batch_size,
                  width_, batch_features_.data(), batch_labels_.data(), stream_);
}

}  // namespace train
