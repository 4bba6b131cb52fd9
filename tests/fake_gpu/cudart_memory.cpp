// The fake of the CUDA runtime: memory, and the restart of all of it.
#include <cuda_runtime_api.h>

#include <cstring>
#include <functional>

#include "tests/fake_gpu/cudart_call.hpp"
#include "tests/fake_gpu/cudart_handles.hpp"
#include "tests/fake_gpu/fake_gpu.h"
#include "tests/fake_gpu/memory_table.hpp"
#include "tests/fake_gpu/streams.hpp"

namespace ddp::fake_gpu {

namespace {

cudaError_t give(const char* call, void** memory, std::size_t bytes) {
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  *memory = allocate(call, current_device(), bytes);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

// Waits for the device first, as CUDA does: what hangs there hangs the caller.
cudaError_t take_back(const char* made_by, void* memory) {
  if (memory == nullptr) return cudaSuccess;
  const auto block = block_of(memory, 1);
  if (!block || block->made_by != made_by) return cudaErrorInvalidValue;
  count("host synchronisation");
  for (const Point& point : last_points(block->device)) wait_for(point);
  return release(made_by, memory) ? cudaSuccess : cudaErrorInvalidValue;
}

bool is_on_device(const void* memory, std::size_t bytes) {
  const auto block = block_of(memory, bytes);
  return block && block->on_device();
}

// Begins inside a block, but does not end in it.
bool reaches_beyond_its_block(const void* memory, std::size_t bytes) {
  return block_of(memory, 1).has_value() && !block_of(memory, bytes).has_value();
}

cudaError_t check_copy(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (reaches_beyond_its_block(to, bytes) || reaches_beyond_its_block(from, bytes)) return cudaErrorInvalidValue;
  const bool to_device = is_on_device(to, bytes);
  const bool from_device = is_on_device(from, bytes);
  const auto valid_if = [](bool valid) { return valid ? cudaSuccess : cudaErrorInvalidValue; };
  switch (kind) {
    case cudaMemcpyHostToHost: return valid_if(!to_device && !from_device);
    case cudaMemcpyHostToDevice: return valid_if(to_device && !from_device);
    case cudaMemcpyDeviceToHost: return valid_if(!to_device && from_device);
    case cudaMemcpyDeviceToDevice: return valid_if(to_device && from_device);
    case cudaMemcpyDefault: return cudaSuccess;
  }
  return cudaErrorInvalidMemcpyDirection;
}

void wait_on_host(const Point& point) {
  count("host synchronisation");
  wait_for(point);
}

bool is_pageable(const void* memory) { return !block_of(memory, 1).has_value(); }

// Memory that CUDA has not given out is staged, for which the host waits.
cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaStream_t handle, const Fault& fault) {
  const auto stream = stream_of(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  const Point done = enqueue(stream, with_fault(fault, [=] { std::memmove(to, from, bytes); }));
  if (is_pageable(to) || is_pageable(from)) wait_on_host(done);
  return cudaSuccess;
}

cudaError_t set(void* memory, int value, std::size_t bytes, cudaStream_t handle, const Fault& fault) {
  const auto stream = stream_of(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (!is_on_device(memory, bytes)) return cudaErrorInvalidValue;
  enqueue(stream, with_fault(fault, [=] { std::memset(memory, value, bytes); }));
  return cudaSuccess;
}

}  // namespace

}  // namespace ddp::fake_gpu

using namespace ddp::fake_gpu;

extern "C" {

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return host_call("cudaMalloc", [&] { return give("cudaMalloc", memory, bytes); });
}

cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return host_call("cudaMallocHost", [&] { return give("cudaMallocHost", memory, bytes); });
}

cudaError_t cudaFree(void* memory) {
  return host_call("cudaFree", [&] {
    const cudaError_t error = error_of_capture();
    return error == cudaSuccess ? take_back("cudaMalloc", memory) : error;
  });
}

cudaError_t cudaFreeHost(void* memory) {
  return host_call("cudaFreeHost", [&] { return take_back("cudaMallocHost", memory); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return stream_call("cudaMemcpyAsync", [&](const Fault& fault) {
    if (bytes == 0) return cudaSuccess;
    const cudaError_t error = check_copy(to, from, bytes, kind);
    return error == cudaSuccess ? copy(to, from, bytes, stream, fault) : error;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return stream_call("cudaMemcpy", [&](const Fault& fault) {
    if (bytes == 0) return cudaSuccess;
    if (const cudaError_t error = check_copy(to, from, bytes, kind); error != cudaSuccess) return error;
    wait_on_host(enqueue(stream_of(nullptr), with_fault(fault, [=] { std::memmove(to, from, bytes); })));
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return stream_call("cudaMemsetAsync", [&](const Fault& fault) { return set(memory, value, bytes, stream, fault); });
}

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return stream_call("cudaMemset", [&](const Fault& fault) { return set(memory, value, bytes, nullptr, fault); });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  return host_call("cudaPointerGetAttributes", [&] {
    *attributes = {};
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;  // CUDA's own for memory that it does not know
    attributes->hostPointer = const_cast<void*>(memory);
    const auto block = block_of(memory, 1);
    if (!block) return cudaSuccess;
    attributes->type = block->on_device() ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->device = block->device;
    attributes->devicePointer = const_cast<void*>(memory);
    if (block->on_device()) attributes->hostPointer = nullptr;
    return cudaSuccess;
  });
}

unsigned long fake_gpu_calls(const char* name) { return calls(name); }

unsigned long fake_gpu_live(const char* kind) { return live(kind); }

void fake_gpu_restart() {
  end_all_streams();
  forget_handles();
  release_all();
  forget_errors();
  set_current_device(0);
  restart_ledger();
}

}  // extern "C"
