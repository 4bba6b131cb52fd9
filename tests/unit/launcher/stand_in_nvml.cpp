// A stand-in for NVML in tests on machines without its hardware: two GPUs at NUMA nodes 1 and 0, the second in two
// parts, and a third that does not answer. With STAND_IN_NVML_XID in the environment the second GPU reports that fault
// at once; once that is taken, the file STAND_IN_NVML_TAKEN is there. The prototypes are those of the NVML API
// Reference Guide.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct EventData {
  const void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

constexpr int kSuccess = 0, kNotFound = 6, kNotSupported = 3, kTimeout = 10, kGpuIsLost = 15;
constexpr unsigned long long kCriticalError = 8;

// A handle is the number of the GPU, from 1, or 100 and the number of a part.
const void* handle_of(unsigned long number) { return reinterpret_cast<const void*>(number); }
unsigned long number_of(const void* handle) { return reinterpret_cast<unsigned long>(handle); }

}  // namespace

#define NVML_STAND_IN extern "C" __attribute__((visibility("default"))) int

NVML_STAND_IN nvmlInit_v2() { return kSuccess; }
NVML_STAND_IN nvmlShutdown() { return kSuccess; }

NVML_STAND_IN nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return kSuccess;
}

NVML_STAND_IN nvmlDeviceGetHandleByIndex_v2(unsigned index, const void** device) {
  if (index == 2) return kGpuIsLost;
  *device = handle_of(index + 1);
  return kSuccess;
}

NVML_STAND_IN nvmlDeviceGetUUID(const void* device, char* text, unsigned length) {
  const auto number = number_of(device);
  std::snprintf(text, length, number >= 100 ? "MIG-part-%lu" : "GPU-stand-in-%lu", number % 100);
  return kSuccess;
}

NVML_STAND_IN nvmlDeviceGetPciInfo_v3(const void* device, PciInfo* info) {
  std::memset(info, 0, sizeof *info);
  info->domain = 0xfffe;  // where no machine has anything, so that its /sys says nothing of it
  info->bus = number_of(device) == 1 ? 0x1b : 0xe3;
  return kSuccess;
}

NVML_STAND_IN nvmlDeviceGetMemoryAffinity(const void* device, unsigned words, unsigned long* nodes, unsigned scope) {
  if (words == 0 || scope != 0) return kNotSupported;
  nodes[0] = number_of(device) == 1 ? 2 : 1;
  return kSuccess;
}

NVML_STAND_IN nvmlDeviceGetMaxMigDeviceCount(const void* device, unsigned* count) {
  if (number_of(device) != 2) return kNotSupported;
  *count = 7;
  return kSuccess;
}

NVML_STAND_IN nvmlDeviceGetMigDeviceHandleByIndex(const void*, unsigned index, const void** part) {
  if (index != 1 && index != 4) return kNotFound;  // the other places are empty
  *part = handle_of(100 + index);
  return kSuccess;
}

NVML_STAND_IN nvmlEventSetCreate(const void** set) {
  *set = handle_of(1);
  return kSuccess;
}

NVML_STAND_IN nvmlDeviceRegisterEvents(const void*, unsigned long long types, const void*) {
  return types == kCriticalError ? kSuccess : kNotSupported;
}

NVML_STAND_IN nvmlEventSetWait_v2(const void*, EventData* event, unsigned timeout_ms) {
  static int calls = 0;
  const char* const xid = std::getenv("STAND_IN_NVML_XID");
  if (xid != nullptr && calls++ == 0) {
    *event = {handle_of(2), kCriticalError, std::strtoull(xid, nullptr, 10), 0, 0};
    return kSuccess;
  }
  if (const char* const taken = std::getenv("STAND_IN_NVML_TAKEN"); taken != nullptr)
    ::close(::open(taken, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  ::usleep(timeout_ms * 1000);
  return kTimeout;
}
