// The events of a trace, bounded, and their form in a file: Chrome's trace format, "JSON Object Format".
//
// Pure values; the tracer (tracer.hpp) has the one of this process, the clock and the file.
// Source: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ddp::trace {

using TimePoint = std::chrono::time_point<std::chrono::system_clock, std::chrono::nanoseconds>;

// What the timeline tells of a collective besides its name and times.
struct CollectiveFacts {
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;
  TimePoint called{};
  bool has_failed = false;
};

struct Event {
  std::uint32_t track = 0;  // texts of the timeline
  std::uint32_t name = 0;
  TimePoint begin{};
  TimePoint end{};
  std::optional<CollectiveFacts> collective{};  // empty: a span of the program's
};

// Who the file is of.
struct ProcessFacts {
  int rank = 0;
  int pid = 0;
  std::string host{};
};

class Timeline {
 public:
  static constexpr std::size_t kTextsMax = 65'536;     // different ones; later ones all read "..."
  static constexpr std::size_t kTextBytesMax = 1'000;  // the rest of a longer one is cut off

  // Requires events_max > 0.
  explicit Timeline(std::size_t events_max) : events_max_(events_max) {}

  // The number of a text, the same for the same text.
  std::uint32_t text(std::string_view text);

  void add(const Event& event);

  const std::deque<Event>& events() const { return events_; }
  std::uint64_t dropped_count() const { return dropped_count_; }

  // Hands over the file's text, piece by piece.
  void write(const ProcessFacts& process, const std::function<void(std::string_view)>& append) const;

 private:
  std::size_t events_max_;
  std::deque<Event> events_;
  std::uint64_t dropped_count_ = 0;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
};

// What the times of a file count from: the same on all ranks that run at the same time, and so near that a reader which
// holds them as floating-point numbers keeps nanoseconds. Source of the idea and of the period: PyTorch's Kineto.
TimePoint base_of(TimePoint time);

}  // namespace ddp::trace
