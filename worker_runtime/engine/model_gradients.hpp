// What the functions on all gradients of a model work with.
//
// Threads: that of the model.
#pragma once

#include <memory>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"
#include "worker_runtime/process_group/device_arithmetic.hpp"
#include "worker_runtime/process_group/device_memory.hpp"

namespace ddp::gradient_engine {

struct ModelGradients {
  // Throws InvalidArgument if the model's hook leaves no gradients in the buckets.
  static ModelGradients of(const DistributedDataParallel& model);

  std::vector<MemoryRange> buckets;
  std::shared_ptr<process_group::DeviceArithmetic> arithmetic;  // of the buckets' device
  std::shared_ptr<process_group::DeviceMemory> memory;
  void* stream = nullptr;  // of the model's options
};

}  // namespace ddp::gradient_engine
