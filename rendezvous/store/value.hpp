// A value of the store. Answers refer to it instead of copying it, so a value that many read is in memory once. It
// counts in the budget until the store and the last answer have let go of it.
//
// Threads: one caller at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "rendezvous/store/memory_budget.hpp"

namespace ddp::store {

class Value {
 public:
  // What a text of this size occupies in the heap; about that of short ones, which are part of an entry.
  static std::size_t memory_bytes(const std::string& bytes) {
    return bytes.capacity() > kShortBytesMax ? bytes.capacity() : bytes.size();
  }

  Value(MemoryBudget& memory, std::string bytes) : memory_(memory), bytes_(std::move(bytes)) {
    memory_.add(memory_bytes());
  }
  ~Value() {
    memory_.remove(memory_bytes());
    if (is_dropped_) memory_.remove_dropped(memory_bytes());
  }
  Value(const Value&) = delete;

  const std::string& bytes() const { return bytes_; }
  std::size_t memory_bytes() const { return memory_bytes(bytes_); }
  bool is_dropped() const { return is_dropped_; }

  // Requires that nothing else refers to it.
  void assign(std::string bytes) {
    memory_.remove(memory_bytes());
    bytes_.swap(bytes);  // an assignment could keep the room of the old text
    memory_.add(memory_bytes());
  }

  // What it occupies with `more_bytes` at its end. A text that grows often doubles its room.
  std::size_t memory_bytes_with(std::size_t more_bytes) const {
    const std::size_t bytes = bytes_.size() + more_bytes;
    if (bytes <= bytes_.capacity()) return std::max(memory_bytes(), std::min(bytes, kShortBytesMax));
    return std::max(bytes, 2 * bytes_.capacity());
  }

  // Requires that nothing else refers to it.
  void append(const std::string& bytes) {
    memory_.remove(memory_bytes());
    if (bytes_.size() + bytes.size() > bytes_.capacity()) bytes_.reserve(memory_bytes_with(bytes.size()));
    bytes_ += bytes;
    memory_.add(memory_bytes());
  }

  // The store no longer has it. From then on it is never changed.
  void drop() {
    is_dropped_ = true;
    memory_.add_dropped(memory_bytes());
  }

 private:
  static constexpr std::size_t kShortBytesMax = 15;

  MemoryBudget& memory_;
  std::string bytes_;
  bool is_dropped_ = false;
};

using SharedValue = std::shared_ptr<const Value>;

}  // namespace ddp::store
