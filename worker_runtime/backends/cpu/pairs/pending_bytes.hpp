// Bytes that are still to be moved: of a header and of the data behind it, or of either alone.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace ddp::cpu_backend {

struct PendingBytes {
  std::array<iovec, 2> parts{};

  std::size_t count() const { return parts[0].iov_len + parts[1].iov_len; }
  bool empty() const { return count() == 0; }

  // The next `bytes` are moved.
  void advance(std::size_t bytes) {
    for (iovec& part : parts) {
      const std::size_t now = std::min(bytes, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + now;
      part.iov_len -= now;
      bytes -= now;
    }
  }
};

}  // namespace ddp::cpu_backend
