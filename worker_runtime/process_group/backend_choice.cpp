#include "worker_runtime/process_group/backend_choice.hpp"

#include <algorithm>

#include "ddp/error.hpp"

namespace ddp::process_group {

namespace {

constexpr const char* kDefault = "cpu";

// One entry of the list: a backend's name, alone or behind the kind of device that it is for. Null for other text.
const core::BackendEntry* backend_of(const std::string& text, std::span<const core::BackendEntry> backends) {
  for (const core::BackendEntry& backend : backends) {
    const std::string device = backend.device == Device::Kind::cpu ? "cpu:" : "cuda:";
    if (text == backend.name || text == device + backend.name) return &backend;
  }
  return nullptr;
}

// Whether it is the only one for its kind of memory.
bool choose(BackendChoice& choice, const core::BackendEntry& backend) {
  const core::BackendEntry*& place = backend.device == Device::Kind::cpu ? choice.host : choice.device;
  if (place != nullptr) return false;
  place = &backend;
  return true;
}

[[noreturn]] void refuse(const std::string& text, std::span<const core::BackendEntry> backends) {
  std::string names;
  for (const core::BackendEntry& backend : backends) names += std::string(backend.name) + ", ";
  throw InvalidArgument("there is no backend '" + text + "'\ntry:   " + names +
                        "or a list as cpu:cpu,cuda:nccl for two of them");
}

}  // namespace

BackendChoice backend_choice(const std::string& text, std::span<const core::BackendEntry> backends) {
  const std::string list = text.empty() ? kDefault : text;
  BackendChoice choice;
  const auto comma = list.find(',');
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string entry = list.substr(begin, end - begin);
    const core::BackendEntry* const backend = backend_of(entry, backends);
    const bool is_plain = entry.find(':') == std::string::npos;
    if (backend == nullptr || (is_plain && comma != std::string::npos) || !choose(choice, *backend)) {
      refuse(text, backends);
    }
    begin = end + 1;
  }
  for (const core::BackendEntry* backend : {choice.host, choice.device}) {
    if (backend == nullptr || backend->make != nullptr) continue;
    throw InvalidArgument(std::string("this build of libddp has no backend ") + backend->name + ": " +
                          backend->absence);
  }
  return choice;
}

}  // namespace ddp::process_group
