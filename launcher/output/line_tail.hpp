// The last lines of a stream, for the summary of a failure: printable, and without colours. Of a progress bar the last
// drawing is left.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

// Remembers them as they pass. Pure.
class LineTail {
 public:
  void remember(std::string_view bytes);
  std::vector<std::string> lines() const;  // oldest first

 private:
  std::deque<std::string> lines_{1};  // the last one is unfinished
  bool drawn_ = false;                // a '\r' came last: more text is drawn over the line
};

// Of a file; none where it can't be read.
std::vector<std::string> tail_of_file(const std::string& path);

}  // namespace ddp::launcher
