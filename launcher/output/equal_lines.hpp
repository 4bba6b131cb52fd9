// Makes one line of the equal lines that many workers print, so that a message of 64 workers is read once.
//
// The rule: a line is held for up to 100 ms, and whoever prints the same line meanwhile is added to it. Lines leave in
// the order in which they came first; each worker's own lines stay in their order, over stdout and stderr together, so
// a line is never added to one that came before this worker's last. A line that every worker has printed need not wait.
//
// Pure: lines and the time go in, lines come out.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddp::launcher {

class EqualLines {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  static constexpr std::chrono::milliseconds kHold{100};
  static constexpr std::size_t kHeldBytesMax = 1 << 20;  // more than this and the oldest lines leave at once

  struct Line {
    int stream = 1;
    std::string text;        // as it was printed
    std::vector<int> ranks;  // who printed it, ascending
  };

  // From this many workers on nobody else can print the same.
  void set_workers(int count) { workers_ = static_cast<std::size_t>(count); }

  // Takes one line in. Requires now >= the `now` of the previous call.
  void add(int rank, int stream, std::string_view text, TimePoint now);

  // What is to be printed by now, in order.
  [[nodiscard]] std::vector<Line> take_due(TimePoint now);
  [[nodiscard]] std::vector<Line> take_all();

  // When take_due() next has something; empty while nothing is held.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

 private:
  struct HeldLine {
    Line line;
    TimePoint due;
  };
  using Key = std::pair<int, std::string>;  // stream, text

  Line take_front();

  std::size_t workers_ = 0;
  std::deque<HeldLine> held_;
  std::uint64_t first_ = 1;                           // the number of held_.front(); numbers grow by one
  std::map<int, std::uint64_t> last_of_rank_;         // the number of the last line that this worker is part of
  std::map<Key, std::deque<std::uint64_t>> by_text_;  // the numbers of held lines
  std::size_t held_bytes_ = 0;
};

}  // namespace ddp::launcher
