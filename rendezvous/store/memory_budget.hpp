// How much memory the store uses, and how much it may use: one budget for keys, values, queues, waits, connections,
// commands of which a part has come, and answers that are not yet written.
//
// Pure. Threads: one caller at a time.
// Protocol: docs/store_protocol.md, "Memory".
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddp/error.hpp"

namespace ddp::store {

// The limit in MiB, as users set it.
constexpr int kMemoryMibMin = 64, kMemoryMibMax = 1 << 20, kMemoryMibDefault = 1024;

enum class ConnectionId : std::uint64_t {};  // never reused

// A command needs more memory than is left. It has changed nothing, so it can be tried again once there is room.
class StoreFull : public StoreError {
 public:
  StoreFull(const std::string& what, std::size_t bytes_needed) : StoreError(what), bytes_needed_(bytes_needed) {}
  std::size_t bytes_needed() const { return bytes_needed_; }

 private:
  std::size_t bytes_needed_;
};

class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t bytes_max) : bytes_max_(bytes_max) {}
  MemoryBudget(const MemoryBudget&) = delete;  // those who use it give back to it

  std::size_t bytes_max() const { return bytes_max_; }
  std::size_t used_bytes() const { return used_bytes_; }
  bool has_room(std::size_t more_bytes) const {
    return used_bytes_ <= bytes_max_ && more_bytes <= bytes_max_ - used_bytes_;
  }

  // Throws StoreFull.
  void require_room(std::size_t more_bytes) const {
    if (has_room(more_bytes)) return;
    throw StoreFull("the store is full: it holds " + std::to_string(used_bytes_) + " of " + std::to_string(bytes_max_) +
                        " bytes, and " + std::to_string(more_bytes) + " more are needed",
                    more_bytes);
  }

  void add(std::size_t bytes) {
    used_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  }
  void remove(std::size_t bytes) { used_bytes_ -= bytes; }

  // Of what is used: values that the store has dropped, but which answers that are not yet written still refer to.
  std::size_t dropped_bytes() const { return dropped_bytes_; }
  void add_dropped(std::size_t bytes) { dropped_bytes_ += bytes; }
  void remove_dropped(std::size_t bytes) { dropped_bytes_ -= bytes; }

  // The most that was used since this was asked last, less what is used now: what the allocator may keep.
  std::size_t take_returned_bytes(std::size_t at_least) {
    const std::size_t returned = peak_bytes_ - used_bytes_;
    if (returned < at_least) return 0;
    peak_bytes_ = used_bytes_;
    return returned;
  }

 private:
  std::size_t bytes_max_;
  std::size_t used_bytes_ = 0;
  std::size_t dropped_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

// What would be free if a connection were closed.
struct Holding {
  ConnectionId connection;
  std::size_t bytes = 0;
};

// A connection that holds no more than this is not closed for another's need.
constexpr std::size_t kHoldingBytesKept = 64u << 10;

// Which connection to close if there is no room for what `asker` holds and asks for: the one that holds the most.
// Empty: the asker itself.
inline std::optional<ConnectionId> connection_to_close(const Holding& asker, const std::vector<Holding>& others) {
  const auto most = std::max_element(others.begin(), others.end(),
                                     [](const Holding& a, const Holding& b) { return a.bytes < b.bytes; });
  if (most == others.end() || most->bytes <= std::max(kHoldingBytesKept, asker.bytes)) return std::nullopt;
  return most->connection;
}

}  // namespace ddp::store
