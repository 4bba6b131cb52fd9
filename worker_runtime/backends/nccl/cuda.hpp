// CUDA's streams and events as values that give themselves back, and its errors as exceptions.
//
// A *sticky* error (an illegal address, an uncorrectable memory error, ...) leaves the process without a usable GPU for
// good: every later call fails with it, in every thread. No exception can be answered by a next group in the same
// process, so check() ends the process, says why, and the launcher starts a replacement.
//
// Threads: any, for a Stream or an Event one at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "ddp/error.hpp"
#include "ddp/memory.hpp"

namespace ddp::nccl_backend {

class CudaError : public Error {
 public:
  CudaError(const std::string& message, cudaError_t code) : Error(message), code_(code) {}
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

// Whether no later call of this process will succeed either.
bool is_sticky(cudaError_t code);

// "an illegal memory access was encountered (cudaErrorIllegalAddress)"
std::string text_of(cudaError_t code);

// Throws CudaError unless it succeeded; `what` says what was done: "recording an event". Ends the process where the
// error is sticky.
void check(cudaError_t code, const char* what);

// The device whose memory this is. Empty for memory that the host may follow, and where CUDA can't tell.
std::optional<Device> device_of(const void* memory);

// Ends the process with exit code 1, after `message` has gone to stderr and the flight recorder to its files. Whoever
// comes second, from another thread, only waits for the end.
[[noreturn]] void end_process(const std::string& message);

int current_device();

// Whether what the stream is given becomes part of a graph. The default stream can't be captured.
bool is_captured(cudaStream_t stream);

// Whether this process has begun to use the device, which takes memory there. True where that can't be told.
bool has_context(int device);

// Makes a device the calling thread's for as long as it lives, and the one from before again; not where that is device
// 0 only because nobody has chosen any, since choosing it would begin to use it.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    if (before_ == device) return;
    check(cudaSetDevice(device), "setting the device");
    has_changed_ = true;
  }
  ~DeviceGuard() {
    if (has_changed_ && has_context(before_)) static_cast<void>(cudaSetDevice(before_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = current_device();
  bool has_changed_ = false;
};

// While it lives, the calling thread may ask for events, and free memory, while a stream is being captured into a
// graph: in the default mode that, from any thread, would spoil the capture.
class RelaxedCapture {
 public:
  RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // then what the thread had before
};

// On the device that is current when it is made. Kernels on it go before those of ordinary streams where both wait for
// room.
class Stream {
 public:
  Stream();
  ~Stream() {
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// On the device that is current when it is made; empty when moved from.
class Event {
 public:
  enum class Timing { off, on };

  explicit Event(Timing timing = Timing::off);
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }

  cudaEvent_t get() const { return event_; }

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "recording an event"); }
  void hold_up(cudaStream_t stream) const {
    check(cudaStreamWaitEvent(stream, event_, 0), "letting a stream wait for an event");
  }
  bool has_come() const;  // whether all ahead of the last record() is done

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory of the host that a device copies to and from while the host goes on.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes) { check(cudaMallocHost(&data_, bytes), "allocating pinned host memory"); }
  ~PinnedMemory() { static_cast<void>(cudaFreeHost(data_)); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// On the device that is current when it is made.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes) { check(cudaMalloc(&data_, bytes), "allocating device memory"); }
  ~DeviceBuffer() { static_cast<void>(cudaFree(data_)); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// From `begin` to `end`, both with Timing::on and come.
inline double milliseconds_between(const Event& begin, const Event& end) {
  float elapsed = 0;
  check(cudaEventElapsedTime(&elapsed, begin.get(), end.get()), "measuring between events");
  return static_cast<double>(elapsed);
}

}  // namespace ddp::nccl_backend
