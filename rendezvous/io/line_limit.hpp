// Bounds the lines that others can make a program write, such as those on nodes that come and go: as many as `burst` at
// once, then one in each `period`. What is left out is counted, and told of with the next line that goes through.
//
// Pure: the time goes in, lines come out.
//
// Threads: one caller at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace ddp::io {

class LineLimit {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Requires burst >= 1 and a period > 0.
  explicit LineLimit(int burst = 100, std::chrono::milliseconds period = std::chrono::seconds(2))
      : burst_(burst), period_(period) {}

  // The line to write; empty where it is left out.
  [[nodiscard]] std::optional<std::string> take(const std::string& line, TimePoint now) {
    // Each line takes a period, up to `burst` of them in advance.
    const auto begin = std::max(next_, now - burst_ * period_);
    if (begin + period_ > now) {
      ++left_out_;
      return {};
    }
    next_ = begin + period_;
    if (left_out_ == 0) return line;
    return "(" + std::to_string(std::exchange(left_out_, 0)) + " lines before this one were left out) " + line;
  }

 private:
  const int burst_;
  const std::chrono::milliseconds period_;
  TimePoint next_{TimePoint::min()};
  std::size_t left_out_ = 0;
};

}  // namespace ddp::io
