#include "worker_runtime/elastic/host_copy.hpp"

#include <cstring>
#include <string>

#include "ddp/error.hpp"

namespace ddp::elastic {

namespace {

void require_supported(Device device) {
  if (is_supported(device)) return;
  throw InvalidArgument("elastic state in the memory of cuda:" + std::to_string(device.index) +
                        ": this build copies host memory only\ntry:   keep a copy in host memory and add that");
}

}  // namespace

bool is_supported(Device device) { return device.kind == Device::Kind::cpu; }

void copy_from(std::byte* to, const void* from, std::size_t bytes, Device device) {
  require_supported(device);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void copy_to(void* to, const std::byte* from, std::size_t bytes, Device device) {
  require_supported(device);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace ddp::elastic
