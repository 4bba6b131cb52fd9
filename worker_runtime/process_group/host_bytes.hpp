// Bytes of host memory that ranks give each other through a group that takes host memory.
//
// Threads and errors: those of ProcessGroup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ddp/process_group.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::process_group {

// Collective: the texts of all ranks, by rank. Takes memory for as many of the longest.
std::vector<std::string> all_gather_texts(ProcessGroup& group, const std::string& text, Within within,
                                          CollectiveOptions options = {});

// Sends to one rank, and receives from one; an empty span: neither. Both sides of a message have the same length.
struct Outgoing {
  int peer = 0;
  std::span<const std::byte> bytes{};
};
struct Incoming {
  int peer = 0;
  std::span<std::byte> bytes{};
};
void exchange(ProcessGroup& group, const Outgoing& send, const Incoming& receive, CollectiveOptions options = {});

// Collective: sends `bytes` bytes of root to all ranks, in chunks of a few MiB.
//
// fill: called on root, for each chunk: writes the bytes from `at` on
// take: called on every rank, root too, for each chunk. The span ends with the call
void broadcast(ProcessGroup& group, int root, std::uint64_t bytes,
               const std::function<void(std::uint64_t at, std::span<std::byte> chunk)>& fill,
               const std::function<void(std::uint64_t at, std::span<const std::byte> chunk)>& take,
               CollectiveOptions options = {});

}  // namespace ddp::process_group
