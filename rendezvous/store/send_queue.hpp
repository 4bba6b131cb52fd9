// The answers to one connection that are not yet written: bytes, and values that it refers to.
//
// Pure. Threads: one caller at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/key_value_store.hpp"

namespace ddp::store {

class SendQueue {
 public:
  // Where front() puts bytes together. One serves all connections.
  struct Scratch {
    std::array<std::string_view, 64> parts;
    std::array<char, 64u << 10> bytes;
  };

  void append(Answer&& answer);

  bool is_empty() const { return bytes_ == 0; }
  std::size_t bytes() const { return bytes_; }  // to be written

  // The next of them, as parts that follow each other: some, if there are any. Valid until anything is called on this
  // or on another SendQueue with the same scratch.
  std::span<const std::string_view> front(Scratch& scratch) const;

  // Says that the next `count` bytes are written. Requires count <= bytes().
  void consume(std::size_t count);

  void clear();

  // What it occupies beside the values, which count by themselves.
  std::size_t memory_bytes() const { return memory_bytes_; }
  // Of the values: those that the store no longer has.
  std::size_t dropped_value_bytes() const;

 private:
  // Some answers' bytes, then values.
  struct Piece {
    std::string bytes;
    std::vector<SharedValue> values;

    std::size_t memory_bytes() const {
      return sizeof *this + bytes.capacity() + values.capacity() * sizeof(SharedValue);
    }
  };

  void end_piece();

  std::list<Piece> pieces_;       // the first is kept when all is written, for its buffer
  std::size_t bytes_ = 0;         // of all pieces, less what is written
  std::size_t memory_bytes_ = 0;  // of all pieces
  // Of the first piece, what is written: bytes, then values, then bytes of a value with its length before.
  std::size_t written_bytes_ = 0;
  std::size_t written_values_ = 0;
  std::size_t written_value_bytes_ = 0;
};

}  // namespace ddp::store
