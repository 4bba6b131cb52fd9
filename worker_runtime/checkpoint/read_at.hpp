// Reads from a place in a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ddp::checkpoint {

// Fills `bytes`. Throws CheckpointError with the reason, also if the file ends before; the caller adds the path.
void read_at(int fd, std::span<std::byte> bytes, std::uint64_t offset);

}  // namespace ddp::checkpoint
