// What the benchmarks do with the one GPU that their ranks share.
#pragma once

#include <cuda_runtime_api.h>
#include <ddp/ddp.hpp>

#include <chrono>
#include <cstddef>
#include <stdexcept>

#include "tests/nccl/place.hpp"

namespace ddp::benchmarks {

inline void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

// Zeros on the device.
class Memory {
 public:
  explicit Memory(std::size_t bytes) {
    check(cudaMalloc(&data_, bytes));
    check(cudaMemset(data_, 0, bytes));
  }
  ~Memory() { static_cast<void>(cudaFree(data_)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }
  std::byte* at(std::size_t byte) const { return static_cast<std::byte*>(data_) + byte; }

 private:
  void* data_ = nullptr;
};

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
