// The fake of the CUDA runtime: streams and events.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>

#include "tests/fake_gpu/cudart_call.hpp"
#include "tests/fake_gpu/cudart_handles.hpp"
#include "tests/fake_gpu/streams.hpp"

namespace ddp::fake_gpu {

namespace {

// What one cudaEventRecord() began.
struct Recording {
  Point point;
  std::chrono::steady_clock::time_point time;  // written by the stream, valid once the point is reached
};

struct Event {
  bool timed = true;
  std::shared_ptr<Recording> latest;  // null where it was never recorded
};

struct Handles {
  std::mutex mutex;
  std::uintptr_t next = 0x1000;  // never reused, so that a stale handle is refused; and above CUDA's special ones
  std::map<cudaStream_t, std::shared_ptr<Stream>> streams;
  std::map<cudaEvent_t, Event> events;
};

Handles& handles() {
  static Handles& one = *new Handles;
  return one;
}

thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

template <class Handle>
Handle next_handle(Handles& at) {
  at.next += 16;
  return reinterpret_cast<Handle>(at.next);
}

// Nothing for a handle that is none.
std::optional<Event> event_of(cudaEvent_t handle) {
  Handles& at = handles();
  const std::lock_guard lock(at.mutex);
  const auto found = at.events.find(handle);
  return found == at.events.end() ? std::nullopt : std::optional(found->second);
}

cudaError_t create_stream(cudaStream_t* made_stream, unsigned int flags) {
  if (flags != cudaStreamDefault && flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
  std::shared_ptr<Stream> stream;
  try {
    stream = open_stream({.device = current_device(), .blocking = flags == cudaStreamDefault});
  } catch (const std::system_error&) {
    return cudaErrorMemoryAllocation;
  }
  Handles& at = handles();
  const std::lock_guard lock(at.mutex);
  *made_stream = next_handle<cudaStream_t>(at);
  at.streams[*made_stream] = std::move(stream);
  made("cudaStream");
  return cudaSuccess;
}

cudaError_t create_event(cudaEvent_t* event, unsigned int flags) {
  if ((flags & ~unsigned{cudaEventBlockingSync | cudaEventDisableTiming}) != 0) return cudaErrorInvalidValue;
  Handles& at = handles();
  const std::lock_guard lock(at.mutex);
  *event = next_handle<cudaEvent_t>(at);
  at.events[*event] = {.timed = (flags & cudaEventDisableTiming) == 0, .latest = nullptr};
  made("cudaEvent");
  return cudaSuccess;
}

cudaError_t record(cudaEvent_t event, cudaStream_t handle, const Fault& fault) {
  const std::shared_ptr<Stream> stream = stream_of(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  Handles& at = handles();
  const std::lock_guard lock(at.mutex);
  const auto found = at.events.find(event);
  if (found == at.events.end()) return cudaErrorInvalidResourceHandle;
  auto recording = std::make_shared<Recording>();
  recording->point =
      enqueue(stream, with_fault(fault, [recording] { recording->time = std::chrono::steady_clock::now(); }));
  found->second.latest = std::move(recording);
  return cudaSuccess;
}

bool is_complete(const Event& event) { return event.latest == nullptr || reached(event.latest->point); }

}  // namespace

cudaError_t error_of_capture() {
  if (capture_mode == cudaStreamCaptureModeRelaxed || !is_any_captured()) return cudaSuccess;
  spoil_captures();
  return cudaErrorStreamCaptureUnsupported;
}

std::shared_ptr<Stream> stream_of(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) return legacy_stream(current_device());
  Handles& at = handles();
  const std::lock_guard lock(at.mutex);
  const auto found = at.streams.find(handle);
  return found == at.streams.end() ? nullptr : found->second;
}

void forget_handles() {
  Handles& at = handles();
  const std::lock_guard lock(at.mutex);
  at.streams.clear();
  at.events.clear();
}

}  // namespace ddp::fake_gpu

using namespace ddp::fake_gpu;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return host_call("cudaStreamCreateWithFlags", [&] { return create_stream(stream, flags); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  return host_call("cudaStreamCreateWithPriority", [&] { return create_stream(stream, flags); });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return host_call("cudaStreamDestroy", [&] {
    Handles& at = handles();
    const std::lock_guard lock(at.mutex);
    const auto found = at.streams.find(handle);
    if (found == at.streams.end()) return cudaErrorInvalidResourceHandle;
    close_stream(found->second);
    at.streams.erase(found);
    gone("cudaStream");
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned int) {
  return stream_call("cudaStreamWaitEvent", [&](const Fault& fault) {
    const auto event = event_of(event_handle);
    const auto stream = stream_of(handle);
    if (!event || stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->latest == nullptr) return cudaSuccess;
    return enqueue_wait(stream, with_fault(fault, [] {}), event->latest->point) ? cudaSuccess
                                                                                : cudaErrorStreamCaptureIsolation;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return host_call("cudaStreamQuery", [&] {
    const auto stream = stream_of(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    return reached(last_point(stream)) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return host_call("cudaStreamSynchronize", [&] {
    const auto stream = stream_of(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = error_of_capture(); error != cudaSuccess) return error;
    count("host synchronisation");
    wait_for(last_point(stream));
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return stream_call("cudaLaunchHostFunc", [&](const Fault& fault) {
    const auto stream = stream_of(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    enqueue(stream, with_fault(fault, [function, data] { function(data); }));
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return host_call("cudaEventCreate", [&] { return create_event(event, cudaEventDefault); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return host_call("cudaEventCreateWithFlags", [&] { return create_event(event, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return host_call("cudaEventDestroy", [&] {
    Handles& at = handles();
    const std::lock_guard lock(at.mutex);
    if (at.events.erase(event) == 0) return cudaErrorInvalidResourceHandle;
    gone("cudaEvent");
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return stream_call("cudaEventRecord", [&](const Fault& fault) { return record(event, stream, fault); });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return host_call("cudaEventQuery", [&] {
    const auto event = event_of(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (event->latest != nullptr && event->latest->point.capture != nullptr) {
      spoil_captures();
      return cudaErrorCapturedEvent;
    }
    if (const cudaError_t error = error_of_capture(); error != cudaSuccess) return error;
    return is_complete(*event) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return host_call("cudaEventSynchronize", [&] {
    const auto event = event_of(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = error_of_capture(); error != cudaSuccess) return error;
    count("host synchronisation");
    if (event->latest != nullptr) wait_for(event->latest->point);
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin_handle, cudaEvent_t end_handle) {
  return host_call("cudaEventElapsedTime", [&] {
    const auto begin = event_of(begin_handle);
    const auto end = event_of(end_handle);
    const auto usable = [](const auto& event) { return event && event->timed && event->latest != nullptr; };
    if (!usable(begin) || !usable(end)) return cudaErrorInvalidResourceHandle;
    if (!is_complete(*begin) || !is_complete(*end)) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->latest->time - begin->latest->time).count();
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return host_call("cudaThreadExchangeStreamCaptureMode", [&] {
    std::swap(*mode, capture_mode);
    return cudaSuccess;
  });
}

}  // extern "C"
