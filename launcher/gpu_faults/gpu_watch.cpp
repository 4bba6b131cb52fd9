#include "launcher/gpu_faults/gpu_watch.hpp"

#include <deque>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/library.hpp"
#include "base/quiet_thread.hpp"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kFaultsMax = 32;
constexpr std::chrono::milliseconds kWait = std::chrono::hours(1);  // for one event; then it waits again

// The part of NVML's interface that is used here. Source: NVML API Reference Guide.
struct NvmlDeviceState;
struct NvmlEventSetState;
using NvmlDevice = NvmlDeviceState*;
using NvmlEventSet = NvmlEventSetState*;
struct NvmlEventData {
  NvmlDevice device;
  unsigned long long type, data;  // data: of a critical error, its XID
  unsigned gpu_instance, compute_instance;
};
constexpr int kNvmlSuccess = 0, kNvmlTimeout = 10;
constexpr unsigned long long kNvmlCriticalError = 8;

struct Nvml {
  explicit Nvml(const std::string& name) : library(name) {
    is_complete = library.find("nvmlInit_v2", init) && library.find("nvmlDeviceGetCount_v2", count) &&
                  library.find("nvmlDeviceGetHandleByIndex_v2", handle) && library.find("nvmlDeviceGetIndex", index) &&
                  library.find("nvmlEventSetCreate", make_set) && library.find("nvmlDeviceRegisterEvents", add) &&
                  library.find("nvmlEventSetWait_v2", wait);
  }

  // Empty where there is nobody to hear.
  NvmlEventSet begin() const {
    NvmlEventSet set = nullptr;
    unsigned gpus = 0, heard = 0;
    if (!is_complete || init() != kNvmlSuccess || count(&gpus) != kNvmlSuccess || make_set(&set) != kNvmlSuccess)
      return nullptr;
    for (unsigned i = 0; i < gpus; ++i)
      if (NvmlDevice device = nullptr; handle(i, &device) == kNvmlSuccess)
        heard += add(device, kNvmlCriticalError, set) == kNvmlSuccess ? 1 : 0;
    return heard > 0 ? set : nullptr;
  }

  base::Library library;
  bool is_complete = false;
  int (*init)();
  int (*count)(unsigned*);
  int (*handle)(unsigned, NvmlDevice*);
  int (*index)(NvmlDevice, unsigned*);
  int (*make_set)(NvmlEventSet*);
  int (*add)(NvmlDevice, unsigned long long, NvmlEventSet);
  int (*wait)(NvmlEventSet, NvmlEventData*, unsigned);
};

}  // namespace

struct GpuWatch::Heard {
  struct Fault {
    unsigned gpu;
    std::uint64_t xid;
    Clock::time_point when;
  };

  // Returns false once nobody wants to know any more.
  bool add(const Fault& fault) {
    const std::lock_guard lock(mutex);
    faults.push_back(fault);
    if (faults.size() > kFaultsMax) faults.pop_front();
    return is_wanted;
  }

  std::mutex mutex;
  std::deque<Fault> faults;
  bool is_wanted = true;
};

GpuWatch::GpuWatch(const std::string& nvml) : heard_(std::make_shared<Heard>()) {
  // No call ends NVML's wait, so the thread goes on by itself, at most until the process ends.
  const auto listen = [heard = heard_, nvml] {
    const Nvml driver(nvml);
    const NvmlEventSet set = driver.begin();
    while (set != nullptr) {
      NvmlEventData event{};
      const int result = driver.wait(set, &event, static_cast<unsigned>(kWait.count()));
      if (result == kNvmlTimeout) continue;
      unsigned gpu = 0;
      if (result != kNvmlSuccess || driver.index(event.device, &gpu) != kNvmlSuccess) return;
      if (!heard->add({gpu, event.data, Clock::now()})) return;
    }
  };
  try {
    base::start_quiet_thread(listen).detach();
  } catch (const std::system_error&) {  // then nothing is heard
  }
}

GpuWatch::~GpuWatch() {
  const std::lock_guard lock(heard_->mutex);
  heard_->is_wanted = false;
}

std::vector<GpuFault> GpuWatch::faults(std::chrono::milliseconds job_time) const {
  const std::lock_guard lock(heard_->mutex);
  const auto now = Clock::now();
  std::vector<GpuFault> out;
  for (const auto& fault : heard_->faults)
    out.push_back(
        {fault.gpu, fault.xid, job_time - std::chrono::duration_cast<std::chrono::milliseconds>(now - fault.when)});
  return out;
}

}  // namespace ddp::launcher
