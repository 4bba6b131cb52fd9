// The training loop: a rank's share of the data, the model, and the gradient engine over it.
//
// Everything of a step is put on one stream, and the host waits for nothing within an epoch.
//
// Threads: one at a time, whose current device is that of the group.
#pragma once

#include <ddp/distributed_data_parallel.hpp>
#include <ddp/process_group.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "batches.hpp"
#include "device.hpp"
#include "device_mlp.hpp"
#include "device_spans.hpp"
#include "options.hpp"

namespace train {

// In device memory.
struct DeviceSamples {
  DeviceArray<float> features;
  DeviceArray<int> labels;
};

struct Task {
  MlpShape shape;
  DeviceSamples train, test;
  int replicas = 1, replica = 0;  // that share the training samples
};

class Training {
 public:
  // Collective. Throws InputError for data that can't be read, or are too few.
  Training(ddp::ProcessGroup world, const CudaOptions& options);

  // Collective. Trains, and prints on rank 0 how it goes.
  void run();

 private:
  ddp::DistributedDataParallelOptions engine_options() const;
  void run_epoch(std::uint64_t epoch);
  void step(std::size_t batch);
  double mean_loss(std::size_t batches);
  void report_accuracy();

  ddp::ProcessGroup world_;
  CudaOptions options_;
  Stream stream_;
  DeviceSpans spans_{stream_.get()};
  Task task_;
  DeviceMlp mlp_;
  ddp::DistributedDataParallel model_;
  Batches batches_;
  std::vector<float*> gradients_;
  DeviceArray<double> loss_{1};  // the sum over the epoch's batches
};

}  // namespace train
