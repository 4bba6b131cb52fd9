// Holds the report of a round's end until the reasons of the failed workers are read.
//
// The reasons may show that a worker failed for want of another rank. So the order of the failures, the node's own
// cause first, is that after the reasons are read.
//
// The reasons are in files, and the disk may not answer: after a limit the report goes without them. Each report that
// is held has a number of its own, so that an answer which comes too late is not taken for that of a later report.
//
// Pure. Threads: those of NodeCore.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

// What failed workers have left in files.
struct Reasons {
  std::vector<std::string> messages{};  // of their error files, in the order of the failures; empty: none
  std::vector<std::vector<std::string>> stderr_tails{};  // likewise, their last lines on stderr
  std::string stderr_lost{};                             // why such a file can't be written now; empty: it can
};

constexpr std::chrono::milliseconds kReasonsLimit{2'000};  // files are read in less than a millisecond

class RoundReport {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Requires that no report is held. Returns the number of this one.
  std::uint64_t hold(rendezvous::RoundEnded report, TimePoint now);

  // The report with its reasons; empty where none of this number is held.
  std::optional<rendezvous::RoundEnded> complete(std::uint64_t number, const Reasons& reasons);

  // The report as it is; empty where none is held.
  std::optional<rendezvous::RoundEnded> give_up() { return std::exchange(held_, std::nullopt); }

  // When give_up() is due; empty where no report is held.
  std::optional<TimePoint> deadline() const { return held_ ? std::optional(deadline_) : std::nullopt; }

 private:
  std::optional<rendezvous::RoundEnded> held_;
  std::uint64_t number_ = 0;  // of the last report
  TimePoint deadline_;
};

}  // namespace ddp::launcher
