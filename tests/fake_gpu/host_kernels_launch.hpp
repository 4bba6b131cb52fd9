// Puts host code on a stream of the stand-in as a kernel.
//
// Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace ddp::fake_gpu {

// What a kernel reads or writes.
struct Touched {
  template <class T>
  Touched(const T* memory_, std::size_t count) : memory(memory_), bytes(count * sizeof(T)) {}

  const void* memory;
  std::size_t bytes;
};
inline Touched touched_bytes(const void* memory, std::size_t bytes) {
  return {static_cast<const std::byte*>(memory), bytes};
}

// Counts as a call of cudaLaunchKernel, and takes its faults. Where something of `touched` is not device memory when
// the work's turn comes, it is an illegal address: the device is lost.
cudaError_t launch_kernel(const char* name, cudaStream_t stream, std::vector<Touched> touched,
                          std::function<void()> work);

}  // namespace ddp::fake_gpu
