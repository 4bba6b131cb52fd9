#include "worker_runtime/backends/nccl/cuda.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <system_error>

#include "base/host_name.hpp"
#include "base/quiet_thread.hpp"
#include "worker_runtime/flight_recorder/group_log.hpp"

namespace ddp::nccl_backend {

namespace {

constexpr std::chrono::seconds kLastWordsLimit{5};

// In a thread of its own: a disk that does not answer, or a stream's lock that the program holds, must not keep a
// process that a replacement waits for.
void say_last_words(const std::string& why) {
  const auto said = std::make_shared<std::promise<void>>();
  const std::future<void> is_said = said->get_future();
  try {
    base::start_quiet_thread([said, why] {
      std::fprintf(stderr, "libddp: this process ends: %s\nwhere: host %s, pid %d\n", why.c_str(),
                   base::host_name().c_str(), static_cast<int>(::getpid()));
      const std::string look = flight_recorder::write_process_failure(why);
      if (!look.empty()) std::fprintf(stderr, "%s\n", look.c_str() + 1);  // without the newline that it begins with
      std::fflush(nullptr);
      said->set_value();
    }).detach();
  } catch (const std::system_error&) {  // no thread, no words
    return;
  }
  static_cast<void>(is_said.wait_for(kLastWordsLimit));
}

}  // namespace

// Source: CUDA's documentation of cudaError_t: those of which it says "this leaves the process in an inconsistent
// state".
bool is_sticky(cudaError_t code) {
  switch (static_cast<int>(code)) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case 226:  // cudaErrorContained and cudaErrorTensorMemoryLeak, which older headers lack
    case 721:
    case cudaErrorExternalDevice:
    case cudaErrorMpsClientTerminated: return true;
    default: return false;
  }
}

std::string text_of(cudaError_t code) {
  return std::string(cudaGetErrorString(code)) + " (" + cudaGetErrorName(code) + ")";
}

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  if (is_sticky(code)) {
    end_process(text_of(code) + ", found when " + what +
                ": no later CUDA call of this process can succeed\n"
                "try:   run it under compute-sanitizer; `dmesg | grep -i xid` tells whether the GPU itself failed");
  }
  static_cast<void>(cudaGetLastError());  // so that the program's own next check does not find this one
  throw CudaError(std::string(what) + ": " + text_of(code), code);
}

std::optional<Device> device_of(const void* memory) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return std::nullopt;
  }
  if (attributes.type != cudaMemoryTypeDevice) return std::nullopt;
  return Device{Device::Kind::cuda, attributes.device};
}

void end_process(const std::string& message) {
  static std::mutex ending;
  const std::lock_guard lock(ending);  // until the end
  say_last_words(message);
  std::_Exit(1);  // no destructor could free anything of the GPU any more
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  return device;
}

bool is_captured(cudaStream_t stream) {
  if (stream == nullptr) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "asking for a stream's capture");
  return status != cudaStreamCaptureStatusNone;
}

bool has_context(int device) {
  using GetState = int(int device, unsigned* flags, int* is_active);
  static GetState* const get_state = [] {
    void* found = nullptr;
    auto result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    static_cast<void>(
        cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found, 7000, cudaEnableDefault, &result));
#else
    static_cast<void>(cudaGetDriverEntryPoint("cuDevicePrimaryCtxGetState", &found, cudaEnableDefault, &result));
#endif
    return result == cudaDriverEntryPointSuccess ? reinterpret_cast<GetState*>(found) : nullptr;
  }();
  unsigned flags = 0;
  int is_active = 1;
  if (get_state != nullptr && get_state(device, &flags, &is_active) != 0) return true;
  return is_active != 0;
}

Stream::Stream() {
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for the priorities of streams");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "making a stream");
}

Event::Event(Timing timing) {
  check(cudaEventCreateWithFlags(&event_, timing == Timing::on ? cudaEventDefault : cudaEventDisableTiming),
        "making an event");
}

bool Event::has_come() const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check(state, "looking at an event");
  return true;
}

}  // namespace ddp::nccl_backend
