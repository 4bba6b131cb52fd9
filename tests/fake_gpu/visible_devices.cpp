#include "tests/fake_gpu/visible_devices.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <sstream>

namespace ddp::fake_gpu {

namespace {

// -1 where the entry names none.
int device_named(const std::string& entry, int devices) {
  if (entry.rfind("GPU-", 0) == 0) {
    for (int device = 0; device < devices; ++device) {
      if (uuid_text(device).rfind(entry, 0) == 0) return device;
    }
    return -1;
  }
  int index = -1;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  const bool whole = error == std::errc{} && end == entry.data() + entry.size();
  return whole && index >= 0 && index < devices ? index : -1;
}

}  // namespace

std::string uuid_text(int physical_device) {
  char text[64];
  std::snprintf(text, sizeof text, "GPU-46414b45-0000-0000-0000-0000000000%02x",
                static_cast<unsigned>(physical_device));
  return text;
}

std::array<char, 16> uuid_bytes(int physical_device) {
  std::array<char, 16> bytes{'F', 'A', 'K', 'E'};
  bytes.back() = static_cast<char>(physical_device);
  return bytes;
}

std::vector<int> visible_devices(const char* variable, int devices) {
  std::vector<int> visible;
  if (variable == nullptr) {
    for (int device = 0; device < devices; ++device) visible.push_back(device);
    return visible;
  }
  std::istringstream entries(variable);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const int device = device_named(entry, devices);
    if (device < 0) break;
    if (std::find(visible.begin(), visible.end(), device) != visible.end()) return {};  // as CUDA: none, for a double
    visible.push_back(device);
  }
  return visible;
}

}  // namespace ddp::fake_gpu
