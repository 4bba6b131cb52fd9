// What every call of the CUDA runtime's fake has in common: it is counted, may have a fault, finds the sticky error,
// and leaves its own error for cudaGetLastError().
//
// Threads: any; the last error is the calling thread's, the sticky one the process's.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "tests/fake_gpu/ledger.hpp"

namespace ddp::fake_gpu {

struct Begun {
  cudaError_t error = cudaSuccess;  // what the call returns instead of doing anything
  Fault fault{};                    // hang or delay, else none
};
Begun begin_call(const char* name);

// Keeps the error for cudaGetLastError(); returns it.
cudaError_t remember(cudaError_t error);
cudaError_t last_error(bool forget);

// Loses the device: all calls return this error from now on.
void make_sticky(cudaError_t error);
bool device_is_lost();

// A call that only the host has to do with.
template <class Body>
cudaError_t host_call(const char* name, const Body& body) {
  const Begun begun = begin_call(name);
  if (begun.error != cudaSuccess) return remember(begun.error);
  suffer(begun.fault);
  return remember(body());
}

// A call that adds work to a stream; body(fault) sees to it that the work hangs, or is late.
template <class Body>
cudaError_t stream_call(const char* name, const Body& body) {
  const Begun begun = begin_call(name);
  return remember(begun.error != cudaSuccess ? begun.error : body(begun.fault));
}

// The work, with its fault.
std::function<void()> with_fault(const Fault& fault, std::function<void()> work);

// The current device of this thread, as the process counts them.
int current_device();
void set_current_device(int device);
// The device's number on this machine, by CUDA_VISIBLE_DEVICES.
int physical_device(int device);

// Called by functions that the host must not call while a stream is captured in the global mode (the only mode here),
// except in a thread in the relaxed mode. Returns an error, and spoils the capture, if it is not allowed.
cudaError_t error_of_capture();

void forget_errors();  // the sticky one, and this thread's

}  // namespace ddp::fake_gpu
