// Bounds the lines that others can make a program write, such as those on nodes that come and go: as many as `burst` at
// once, then one in each `period`. What is left out is counted. The newest of it follows when its time has come, so a
// flood does not hide how it ended.
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
#include <vector>

namespace ddp::base {

class LineLimit {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // A line with what was left out before it.
  using WithCount = std::string (*)(const std::string& line, std::size_t left_out);

  // Requires burst >= 1 and a period > 0.
  explicit LineLimit(int burst = 100, std::chrono::milliseconds period = std::chrono::seconds(2),
                     WithCount with_count = &sentence)
      : burst_(burst), period_(period), with_count_(with_count) {}

  // The line to write now; empty: it is left out, at least for now.
  [[nodiscard]] std::optional<std::string> take(const std::string& line, TimePoint now) {
    if (now < end_of_next(now)) {
      newest_ = line;
      ++left_out_;
      return {};
    }
    taken_until_ = end_of_next(now);
    return told(line, std::exchange(left_out_, 0));
  }

  // The line that is due, if there is one; calling early or twice is harmless.
  [[nodiscard]] std::vector<std::string> tick(TimePoint now) {
    if (left_out_ == 0 || now < end_of_next(now)) return {};
    taken_until_ = end_of_next(now);
    return {told(newest_, std::exchange(left_out_, 0) - 1)};
  }

  // When tick() next has a line; empty while only take() can change that.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const {
    if (left_out_ == 0) return {};
    return taken_until_ + period_;
  }

 private:
  std::string told(const std::string& line, std::size_t left_out) const {
    return left_out == 0 ? line : with_count_(line, left_out);
  }

  // Each line takes the next period. `burst` of them may have been saved up.
  TimePoint end_of_next(TimePoint now) const { return std::max(taken_until_, now - burst_ * period_) + period_; }

  static std::string sentence(const std::string& line, std::size_t left_out) {
    return "(" + std::to_string(left_out) + (left_out == 1 ? " line was" : " lines were") + " left out here) " + line;
  }

  const int burst_;
  const std::chrono::milliseconds period_;
  const WithCount with_count_;
  TimePoint taken_until_{TimePoint::min()};
  std::string newest_;
  std::size_t left_out_ = 0;
};

}  // namespace ddp::base
