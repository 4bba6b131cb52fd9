// Cuts a stream of bytes into lines. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddp::launcher {

// A longer line is passed on in pieces, because somebody who never ends a line must not fill our memory.
constexpr std::size_t kLineBytesMax = 64 * 1024;

class WholeLines {
 public:
  // Calls line(std::string_view) for every line that is complete now, without its newline.
  template <class Line>
  void feed(std::string_view bytes, Line line) {
    for (auto end = bytes.find('\n'); end != std::string_view::npos; end = bytes.find('\n')) {
      if (unfinished_.empty()) {
        line(bytes.substr(0, end));
      } else {
        unfinished_ += bytes.substr(0, end);
        line(std::string_view(unfinished_));
        unfinished_.clear();
      }
      bytes.remove_prefix(end + 1);
    }
    unfinished_ += bytes;
    if (unfinished_.size() > kLineBytesMax) end(line);
  }

  // The same with what no newline ended.
  template <class Line>
  void end(Line line) {
    if (!unfinished_.empty()) line(std::string_view(unfinished_));
    unfinished_.clear();
  }

 private:
  std::string unfinished_;
};

}  // namespace ddp::launcher
