// Counts the calls of the CUDA runtime that make the host wait for a device, of all that is linked into the program:
// the linker puts these in their place (--wrap, see CMakeLists.txt).
#include <cuda_runtime_api.h>

#include <atomic>

#include "tests/nccl/place.hpp"

namespace {

std::atomic<unsigned long> count{0};

// A copy to or from memory that CUDA does not know goes through a buffer, and the host waits for it.
void count_if_pageable(const void* host) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, host) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  if (attributes.type == cudaMemoryTypeUnregistered) ++count;
}

}  // namespace

namespace ddp::nccl_test {

unsigned long host_synchronisations() { return count; }

}  // namespace ddp::nccl_test

// The names are the linker's.
extern "C" {

cudaError_t __real_cudaDeviceSynchronize();
cudaError_t __wrap_cudaDeviceSynchronize() {
  ++count;
  return __real_cudaDeviceSynchronize();
}

cudaError_t __real_cudaStreamSynchronize(cudaStream_t stream);
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  ++count;
  return __real_cudaStreamSynchronize(stream);
}

cudaError_t __real_cudaEventSynchronize(cudaEvent_t event);
cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event) {
  ++count;
  return __real_cudaEventSynchronize(event);
}

cudaError_t __real_cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t __wrap_cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  ++count;
  return __real_cudaMemcpy(to, from, bytes, kind);
}

cudaError_t __real_cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream);
cudaError_t __wrap_cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  if (kind == cudaMemcpyHostToDevice) count_if_pageable(from);
  if (kind == cudaMemcpyDeviceToHost) count_if_pageable(to);
  return __real_cudaMemcpyAsync(to, from, bytes, kind, stream);
}

cudaError_t __real_cudaFree(void* memory);
cudaError_t __wrap_cudaFree(void* memory) {
  ++count;
  return __real_cudaFree(memory);
}

cudaError_t __real_cudaFreeHost(void* memory);
cudaError_t __wrap_cudaFreeHost(void* memory) {
  ++count;
  return __real_cudaFreeHost(memory);
}

}  // extern "C"
