// Bytes on their way to a slow reader, in bounded memory.
//
// Pure. What does not fit is dropped in whole chunks and counted in lines. The count is told in one line as soon as
// half of the memory is free again.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddp::base {

class BoundedOutput {
 public:
  // `program` begins the line that tells the count: "ddprun".
  BoundedOutput(std::size_t bytes_max, std::string_view program) : bytes_max_(bytes_max), program_(program) {}

  void push(std::string_view bytes);

  // The same for what must not be lost; the caller bounds how much that is.
  void push_always(std::string_view bytes);

  // What is to be written next; empty if nothing.
  std::string_view front() const { return std::string_view(queue_).substr(written_); }
  void pop(std::size_t bytes);

  bool empty() const { return front().empty() && dropped_lines_ == 0; }

 private:
  void tell_dropped();

  std::size_t bytes_max_;
  std::string program_;
  std::string queue_;
  std::size_t written_ = 0;  // bytes of queue_ that are done
  std::size_t dropped_lines_ = 0;
  bool mid_line_ = false;  // whether the last byte taken in was no newline
};

}  // namespace ddp::base
