#include "ddp/sync_batch_norm.hpp"

#include <cstddef>
#include <memory>
#include <string>

#include "ddp/error.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"
#include "worker_runtime/tensor/batch_norm.hpp"

namespace ddp {
namespace {

using process_group::Backend;
using process_group::DeviceArithmetic;
using tensor::batch_norm_numbers;

// [statistics, memory for the collectives: the moments of all ranks, or the sums of a backward]
double* numbers_of(const BatchStatistics& statistics) { return static_cast<double*>(statistics.memory.get()); }
double* exchanged(const BatchStatistics& statistics) {
  return numbers_of(statistics) + batch_norm_numbers(statistics.mean.size());
}

Backend& backend_of(ProcessGroup& group) { return process_group::require_group(group.impl()).backend(); }

std::shared_ptr<DeviceArithmetic> arithmetic_on(Backend& backend, Device device) {
  return device == Device{} ? process_group::host_arithmetic() : backend.device_arithmetic();
}

void require_reachable(Backend& backend, const BatchShape& shape, const float* values, const char* call) {
  if (backend.takes({values, shape.size(), DataType::float32, shape.device})) return;
  throw InvalidArgument(std::string("values that are not in memory of this group\nwhere: ") + call +
                        "\ntry:   BatchShape::device = ProcessGroup::device(), and all arrays there");
}

bool fit(const BatchStatistics& statistics, const BatchShape& shape) {
  return statistics.memory && statistics.mean.size() == shape.channels && statistics.mean.device() == shape.device;
}

// Gives the statistics memory, unless they have it.
void prepare(BatchStatistics& statistics, ProcessGroup& group, const BatchShape& shape, void* stream) {
  const std::size_t channels = shape.channels, parts = static_cast<std::size_t>(group.size()) + 1;
  const std::size_t bytes = parts * batch_norm_numbers(channels) * sizeof(double);
  if (fit(statistics, shape) && statistics.bytes == bytes) return;
  statistics = {};
  const auto memory = shape.device == Device{} ? process_group::host_memory() : backend_of(group).device_memory();
  statistics.memory = memory->allocate(bytes, stream);
  statistics.bytes = bytes;
  const double* const numbers = numbers_of(statistics);
  statistics.mean = {numbers, channels, shape.device};
  statistics.inverse_std = {numbers + channels, channels, shape.device};
  statistics.count = {numbers + 2 * channels, 1, shape.device};
}

// In host memory.
void require_variance(const tensor::BatchNormForward& its) {
  double count = 0;
  const std::size_t numbers = batch_norm_numbers(its.shape.channels);
  for (std::size_t rank = 0; rank < its.ranks; ++rank) count += its.moments[(rank + 1) * numbers - 1];
  if (count >= 2) return;
  throw InvalidArgument("a batch of " + std::to_string(static_cast<int>(count)) +
                        " elements of a channel on all ranks together has no variance\n"
                        "where: sync_batch_norm_forward\ntry:   larger batches, or the running statistics");
}

}  // namespace

void DDP_ABI::sync_batch_norm_forward(ProcessGroup& group, const BatchShape& shape, const float* x,
                                      const BatchNormParameters& parameters, float* y, BatchStatistics& statistics,
                                      const BatchNormOptions& options) {
  Backend& backend = backend_of(group);
  require_reachable(backend, shape, x, "sync_batch_norm_forward");
  void* const stream = options.collective.stream;
  prepare(statistics, group, shape, stream);
  const tensor::BatchNormForward pass{.shape = shape,
                                      .x = x,
                                      .y = y,
                                      .parameters = parameters,
                                      .epsilon = options.epsilon,
                                      .momentum = options.momentum,
                                      .rank = static_cast<std::size_t>(group.rank()),
                                      .ranks = static_cast<std::size_t>(group.size()),
                                      .moments = exchanged(statistics),
                                      .statistics = numbers_of(statistics)};
  const auto arithmetic = arithmetic_on(backend, shape.device);
  arithmetic->begin_batch_norm(pass, stream);
  const std::size_t numbers = batch_norm_numbers(shape.channels);
  group.all_gather(ConstMemoryRange(pass.moments + pass.rank * numbers, numbers, DataType::float64, shape.device),
                   MemoryRange(pass.moments, pass.ranks * numbers, DataType::float64, shape.device),
                   options.collective);
  if (shape.device == Device{}) require_variance(pass);
  arithmetic->end_batch_norm(pass, stream);
}

void DDP_ABI::sync_batch_norm_backward(ProcessGroup& group, const BatchShape& shape, const float* of_y, const float* x,
                                       const BatchStatistics& statistics, const float* weight, float* of_x,
                                       float* of_weight, float* of_bias, CollectiveOptions options) {
  const std::size_t channels = shape.channels;
  if (!fit(statistics, shape)) {
    throw InvalidArgument("statistics of " + std::to_string(statistics.mean.size()) + " channels for a batch of " +
                          std::to_string(channels) +
                          ", or on another device\nwhere: sync_batch_norm_backward\n"
                          "try:   those of the forward of this batch");
  }
  Backend& backend = backend_of(group);
  require_reachable(backend, shape, of_y, "sync_batch_norm_backward");
  const tensor::BatchNormBackward pass{.shape = shape,
                                       .of_y = of_y,
                                       .x = x,
                                       .weight = weight,
                                       .of_x = of_x,
                                       .of_weight = of_weight,
                                       .of_bias = of_bias,
                                       .statistics = numbers_of(statistics),
                                       .sums = exchanged(statistics)};
  const auto arithmetic = arithmetic_on(backend, shape.device);
  arithmetic->begin_batch_norm(pass, options.stream);
  group.all_reduce(MemoryRange(pass.sums, 2 * channels, DataType::float64, shape.device), ReduceOp::sum, options);
  arithmetic->end_batch_norm(pass, options.stream);
}

}  // namespace ddp
