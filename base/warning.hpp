// What a server says of connections that it refused or cut off: how often is counted for each reason, and a flood of
// them fills no log.
//
// Pure but for the callback: the time goes in, lines come out.
//
// Threads: one caller at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/event_log.hpp"

namespace ddp::base {

struct Warning {
  std::string reason;  // one of a few, that no peer can choose: a label in /metrics
  std::string source;  // the peer's address; empty where there is none
  std::string text;    // the whole line
  LogFields where{};   // the job and the node that the line is about, as far as they are known
};

struct WarningLine {
  std::string text;
  LogFields where{};
};

using Warn = std::function<void(const Warning& warning)>;

// The first warning of a reason is a line of its own. Those of the next minute make one line together, and so on, until
// a minute passes without any.
class WarningTally {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // The line to print now, if there is one.
  [[nodiscard]] std::optional<WarningLine> take(const Warning& warning, TimePoint now);

  // The lines that are due; calling early or twice is harmless.
  [[nodiscard]] std::vector<std::string> tick(TimePoint now);

  // When tick() next has a line; empty while only a warning can change that.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  // Of each reason, since the start.
  std::map<std::string, std::uint64_t> counts() const;

 private:
  struct Reason {
    std::uint64_t count = 0, untold_count = 0;
    std::string last_source;
    TimePoint quiet_ends{};  // until then nothing of this reason is printed
  };

  std::map<std::string, Reason> reasons_;
};

}  // namespace ddp::base
