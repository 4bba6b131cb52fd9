// What the ranks of these benchmarks do with the one GPU that they share.
#pragma once

#include <cuda_runtime_api.h>
#include <ddp/ddp.hpp>

#include <chrono>
#include <stdexcept>

#include "tests/nccl/place.hpp"

namespace ddp::benchmarks {

inline void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

inline ProcessGroup join() {
  const auto place = nccl_test::take_place();
  InitOptions options;
  options.backend = "nccl";
  options.timeout = std::chrono::minutes(1);
  options.device = place.device;
  options.share_device = place.share_device;
  return init_process_group(options);
}

}  // namespace ddp::benchmarks
