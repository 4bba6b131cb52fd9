// The fake of the CUDA runtime: devices and errors.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/fake_gpu/cudart_call.hpp"
#include "tests/fake_gpu/streams.hpp"
#include "tests/fake_gpu/visible_devices.hpp"

namespace ddp::fake_gpu {

namespace {

constexpr int kDevicesByDefault = 8;

std::vector<int> devices() {
  const char* const count = std::getenv("FAKE_GPU_DEVICES");
  return visible_devices(std::getenv("CUDA_VISIBLE_DEVICES"), count == nullptr ? kDevicesByDefault : std::atoi(count));
}

cudaError_t check_device(int device) {
  const int count = static_cast<int>(devices().size());
  if (count == 0) return cudaErrorNoDevice;
  return device >= 0 && device < count ? cudaSuccess : cudaErrorInvalidDevice;
}

struct Text {
  cudaError_t error;
  const char* name;
  const char* what;
};

// Those that the fake returns itself or that tests ask it for; the texts are CUDA's.
constexpr Text kTexts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const Text* text_of(cudaError_t error) {
  const auto* const found =
      std::find_if(std::begin(kTexts), std::end(kTexts), [&](const Text& text) { return text.error == error; });
  return found == std::end(kTexts) ? nullptr : found;
}

void describe(int device, cudaDeviceProp* properties) {
  const int physical = physical_device(device);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "fake GPU");
  const auto uuid = uuid_bytes(physical);
  std::memcpy(properties->uuid.bytes, uuid.data(), uuid.size());
  properties->totalGlobalMem = std::size_t{1} << 34;
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->pciBusID = physical + 1;
  properties->unifiedAddressing = 1;
}

std::string context_on(int device) { return "context on device " + std::to_string(device); }

// As cuDevicePrimaryCtxGetState().
int get_context_state(int device, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = calls(context_on(device).c_str()) > 0 ? 1 : 0;
  return 0;
}

}  // namespace

int physical_device(int device) { return devices().at(static_cast<std::size_t>(device)); }

}  // namespace ddp::fake_gpu

using namespace ddp::fake_gpu;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return host_call("cudaGetDeviceCount", [&] {
    *count = static_cast<int>(devices().size());
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
  });
}

cudaError_t cudaSetDevice(int device) {
  return host_call("cudaSetDevice", [&] {
    const cudaError_t error = check_device(device);
    if (error != cudaSuccess) return error;
    set_current_device(device);
    count(context_on(device).c_str());  // CUDA begins to use the device, and takes memory there
    return error;
  });
}

// Of the driver the fake has only what tells whether a device is in use.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  return host_call("cudaGetDriverEntryPointByVersion", [&] {
    const bool is_there = std::strcmp(symbol, "cuDevicePrimaryCtxGetState") == 0;
    *function = is_there ? reinterpret_cast<void*>(get_context_state) : nullptr;
    *status = is_there ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return host_call("cudaGetDevice", [&] {
    *device = current_device();
    return check_device(*device);
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int device) {
  return host_call("cudaDeviceGetPCIBusId", [&] {
    if (const cudaError_t error = check_device(device); error != cudaSuccess) return error;
    const int written = std::snprintf(id, static_cast<std::size_t>(std::max(size, 0)), "0000:%02X:00.0",
                                      static_cast<unsigned>(physical_device(device) + 1));
    return written < size ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return host_call("cudaGetDeviceProperties", [&] {
    const cudaError_t error = check_device(device);
    if (error == cudaSuccess) describe(device, properties);
    return error;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return host_call("cudaDeviceGetStreamPriorityRange", [&] {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return host_call("cudaDriverGetVersion", [&] {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return host_call("cudaRuntimeGetVersion", [&] {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return host_call("cudaDeviceSynchronize", [&] {
    count("host synchronisation");
    for (const Point& point : last_points(current_device())) wait_for(point);
    return cudaSuccess;
  });
}

cudaError_t cudaGetLastError() {
  enter("cudaGetLastError");
  return last_error(true);
}

cudaError_t cudaPeekAtLastError() {
  enter("cudaPeekAtLastError");
  return last_error(false);
}

const char* cudaGetErrorName(cudaError_t error) {
  const Text* const text = text_of(error);
  return text == nullptr ? "unrecognized error code" : text->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const Text* const text = text_of(error);
  return text == nullptr ? "unrecognized error code" : text->what;
}

}  // extern "C"
