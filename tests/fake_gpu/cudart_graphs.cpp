// The fake of the CUDA runtime: graphs, which are made by capture only. A launch does what was captured one after the
// other, on the stream of the launch.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "tests/fake_gpu/cudart_call.hpp"
#include "tests/fake_gpu/cudart_handles.hpp"
#include "tests/fake_gpu/streams.hpp"

namespace ddp::fake_gpu {

namespace {

using Works = std::shared_ptr<const std::vector<std::function<void()>>>;

struct Graphs {
  std::mutex mutex;
  std::uintptr_t next = 0x1000;  // never reused, so that a stale handle is refused
  std::map<cudaGraph_t, Works> graphs;
  std::map<cudaGraphExec_t, Works> executables;
};

Graphs& graphs() {
  static Graphs& one = *new Graphs;
  return one;
}

template <class Handle>
Handle keep(std::map<Handle, Works>& all, Works works) {
  graphs().next += 16;
  const auto handle = reinterpret_cast<Handle>(graphs().next);
  all[handle] = std::move(works);
  return handle;
}

cudaError_t end(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  const auto stream = stream_of(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  auto captured = end_capture(stream);
  if (!captured) return cudaErrorIllegalState;
  if (captured->is_spoilt) return cudaErrorStreamCaptureInvalidated;
  if (!captured->is_joined) return cudaErrorStreamCaptureUnjoined;
  const std::lock_guard lock(graphs().mutex);
  *graph = keep(graphs().graphs, std::make_shared<std::vector<std::function<void()>>>(std::move(captured->works)));
  return cudaSuccess;
}

}  // namespace

}  // namespace ddp::fake_gpu

using namespace ddp::fake_gpu;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  return host_call("cudaStreamBeginCapture", [&] {
    const auto stream = stream_of(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    return begin_capture(stream) ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return host_call("cudaStreamEndCapture", [&] { return end(handle, graph); });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return host_call("cudaStreamIsCapturing", [&] {
    const auto stream = stream_of(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    *status = is_captured(*stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  return host_call("cudaGraphInstantiate", [&] {
    Graphs& at = graphs();
    const std::lock_guard lock(at.mutex);
    const auto found = at.graphs.find(graph);
    if (found == at.graphs.end()) return cudaErrorInvalidValue;
    *made = keep(at.executables, found->second);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return stream_call("cudaGraphLaunch", [&](const Fault& fault) {
    const auto stream = stream_of(handle);
    Graphs& at = graphs();
    const std::lock_guard lock(at.mutex);
    const auto found = at.executables.find(executable);
    if (stream == nullptr || found == at.executables.end()) return cudaErrorInvalidResourceHandle;
    enqueue(stream, with_fault(fault, [works = found->second] {
              for (const auto& work : *works) work();
            }));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return host_call("cudaGraphDestroy", [&] {
    const std::lock_guard lock(graphs().mutex);
    return graphs().graphs.erase(graph) == 1 ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return host_call("cudaGraphExecDestroy", [&] {
    const std::lock_guard lock(graphs().mutex);
    return graphs().executables.erase(executable) == 1 ? cudaSuccess : cudaErrorInvalidValue;
  });
}

}  // extern "C"
