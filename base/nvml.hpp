// NVIDIA's driver library NVML, loaded where it is used: what each of its users needs of it. They find the rest by
// name.
//
// Source of the interface: NVML API Reference Guide.
#pragma once

#include <string>
#include <vector>

#include "base/library.hpp"

namespace ddp::base {

struct NvmlDeviceState;
using NvmlDevice = NvmlDeviceState*;
constexpr const char* kNvmlName = "libnvidia-ml.so.1";
constexpr int kNvmlSuccess = 0;

class Nvml {
 public:
  explicit Nvml(const std::string& name) : library_(name) {
    is_complete_ = find("nvmlInit_v2", init_) && find("nvmlDeviceGetCount_v2", count_) &&
                   find("nvmlDeviceGetHandleByIndex_v2", handle_);
  }

  // As Library::find().
  template <class Function>
  bool find(const char* name, Function*& function) const {
    return library_.find(name, function);
  }

  // Makes it ready, which can take seconds. False where the library or the driver is missing.
  bool begin() const { return is_complete_ && init_() == kNvmlSuccess; }

  // By the number that nvidia-smi gives them; null for one that does not answer. Requires begin().
  std::vector<NvmlDevice> devices() const {
    unsigned count = 0;
    if (count_(&count) != kNvmlSuccess) return {};
    std::vector<NvmlDevice> out(count, nullptr);
    for (unsigned i = 0; i < count; ++i)
      if (handle_(i, &out[i]) != kNvmlSuccess) out[i] = nullptr;
    return out;
  }

 private:
  Library library_;
  bool is_complete_ = false;
  int (*init_)();
  int (*count_)(unsigned*);
  int (*handle_)(unsigned, NvmlDevice*);
};

}  // namespace ddp::base
