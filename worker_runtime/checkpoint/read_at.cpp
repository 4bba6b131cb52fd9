#include "worker_runtime/checkpoint/read_at.hpp"

#include "ddp/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

namespace ddp::checkpoint {
namespace {

constexpr std::size_t kReadBytesMax = std::size_t{1} << 30;  // one pread() gives a little less than 2 GiB at most

}  // namespace

void read_at(int fd, std::span<std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(fd, bytes.data(), std::min(bytes.size(), kReadBytesMax), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw CheckpointError(std::generic_category().message(errno));
    if (count == 0) throw CheckpointError("it ends at byte " + std::to_string(offset));
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

}  // namespace ddp::checkpoint
