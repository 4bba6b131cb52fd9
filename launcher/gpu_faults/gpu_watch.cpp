#include "launcher/gpu_faults/gpu_watch.hpp"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>

#include "base/nvml.hpp"
#include "base/quiet_thread.hpp"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kFaultsMax = 32;
constexpr std::chrono::milliseconds kWait = std::chrono::hours(1);  // for one event; then it waits again
constexpr std::chrono::seconds kBeforeStart{1}, kStartMax{10}, kAfterError{1};
constexpr int kErrorsMax = 10;  // in a row

using base::kNvmlSuccess;
using base::NvmlDevice;

struct NvmlEventSetState;
using NvmlEventSet = NvmlEventSetState*;
struct NvmlEventData {
  NvmlDevice device;
  unsigned long long type, data;  // data: of a critical error, its XID
  unsigned gpu_instance, compute_instance;
};
constexpr int kNvmlTimeout = 10;
constexpr unsigned long long kNvmlCriticalError = 8;

class NvmlEvents {
 public:
  // Never given back, as threads of the library's own and of this process may be in it until the process ends.
  static NvmlEvents& only() {
    static auto& events = *new NvmlEvents;
    return events;
  }

  // Whether there is anybody to hear.
  bool begin() {
    if (!is_complete_ || !nvml_.begin() || make_set_(&set_) != kNvmlSuccess) return false;
    unsigned number = 0;
    for (const NvmlDevice device : nvml_.devices()) {
      if (device != nullptr && add_(device, kNvmlCriticalError, set_) == kNvmlSuccess) numbers_[device] = number;
      ++number;
    }
    return !numbers_.empty();
  }

  int wait(NvmlEventData& event) const { return wait_(set_, &event, static_cast<unsigned>(kWait.count())); }

  // Not asked of NVML: a GPU that is off the bus has no answer.
  unsigned number_of(NvmlDevice device) const {
    const auto found = numbers_.find(device);
    return found == numbers_.end() ? 0 : found->second;
  }

 private:
  NvmlEvents() {
    is_complete_ = nvml_.find("nvmlEventSetCreate", make_set_) && nvml_.find("nvmlDeviceRegisterEvents", add_) &&
                   nvml_.find("nvmlEventSetWait_v2", wait_);
  }

  base::Nvml nvml_{base::kNvmlName};
  bool is_complete_ = false;
  int (*make_set_)(NvmlEventSet*);
  int (*add_)(NvmlDevice, unsigned long long, NvmlEventSet);
  int (*wait_)(NvmlEventSet, NvmlEventData*, unsigned);
  NvmlEventSet set_ = nullptr;
  std::map<NvmlDevice, unsigned> numbers_;  // as nvidia-smi's
};

}  // namespace

struct GpuWatch::Shared {
  struct Fault {
    unsigned gpu;
    std::uint64_t xid;
    Clock::time_point when;
  };

  // On the thread. False if the watch ends before.
  bool pause(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex);
    return !ended.wait_for(lock, time, [this] { return !is_wanted; });
  }

  void listen() {
    if (!begin()) return;
    for (int errors = 0; errors < kErrorsMax;) {
      NvmlEventData event{};
      const int result = NvmlEvents::only().wait(event);
      if (result == kNvmlSuccess) {
        errors = 0;
        if (!add({NvmlEvents::only().number_of(event.device), event.data, Clock::now()})) return;
      } else if (result != kNvmlTimeout) {  // such as that a GPU is lost; others may still have something to say
        ++errors;
        if (!pause(kAfterError)) return;
      }
    }
  }

  bool begin() {
    {
      const std::lock_guard lock(mutex);
      if (!is_wanted) return false;
      is_starting = true;
    }
    const bool is_ready = NvmlEvents::only().begin();
    const std::lock_guard lock(mutex);
    is_starting = false;
    ended.notify_all();
    return is_ready && is_wanted;
  }

  bool add(const Fault& fault) {
    const std::lock_guard lock(mutex);
    faults.push_back(fault);
    if (faults.size() > kFaultsMax) faults.pop_front();
    return is_wanted;
  }

  std::mutex mutex;
  std::condition_variable ended;  // the watch, or NVML's start
  std::deque<Fault> faults;
  bool is_wanted = true, is_starting = false;
};

// No call ends NVML's wait, so the thread goes on by itself, at most until the process ends.
GpuWatch::GpuWatch(boost::asio::io_context& io) : shared_(std::make_shared<Shared>()), start_(io, kBeforeStart) {
  start_.async_wait([shared = shared_](boost::system::error_code error) {
    if (error) return;
    try {
      base::start_quiet_thread([shared] { shared->listen(); }).detach();
    } catch (const std::system_error&) {  // then nothing is heard
    }
  });
}

GpuWatch::~GpuWatch() {
  std::unique_lock lock(shared_->mutex);
  shared_->is_wanted = false;
  shared_->ended.notify_all();
  shared_->ended.wait_for(lock, kStartMax, [this] { return !shared_->is_starting; });
}

std::vector<GpuFault> GpuWatch::faults(std::chrono::milliseconds job_time) const {
  const std::lock_guard lock(shared_->mutex);
  const auto now = Clock::now();
  std::vector<GpuFault> out;
  for (const auto& fault : shared_->faults)
    out.push_back(
        {fault.gpu, fault.xid, job_time - std::chrono::duration_cast<std::chrono::milliseconds>(now - fault.when)});
  return out;
}

}  // namespace ddp::launcher
