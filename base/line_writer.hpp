// Writes lines to a descriptor that belongs to others too, such as stderr, without ever waiting for its reader: what
// does not fit is dropped, counted, and told of with the next line that fits. The descriptor's mode stays as it is.
// What a line holds of others is made printable, so it stays one line.
//
// Threads: one caller at a time.
#pragma once

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>

#include "base/printable.hpp"

namespace ddp::base {

class LineWriter {
 public:
  LineWriter(int descriptor, std::string prefix) : descriptor_(descriptor), prefix_(std::move(prefix)) {}

  void operator()(const std::string& line) {
    // Where poll says that a pipe or terminal takes bytes, it takes PIPE_BUF of them at once.
    pollfd waiting{descriptor_, POLLOUT, 0};
    if (::poll(&waiting, 1, 0) != 1 || (waiting.revents & POLLOUT) == 0) {
      ++dropped_;
      return;
    }
    auto text = prefix_ + printable(line);
    if (dropped_ != 0)
      text = prefix_ + std::to_string(std::exchange(dropped_, 0)) + " lines before this one were dropped\n" + text;
    if (text.size() >= PIPE_BUF) text.resize(PIPE_BUF - 1);
    text += '\n';
    static_cast<void>(!::write(descriptor_, text.data(), text.size()));  // nowhere to say that it failed
  }

 private:
  int descriptor_;
  std::string prefix_;
  std::size_t dropped_ = 0;
};

}  // namespace ddp::base
