// One history: a job, drawn from the seed, the faults that befall it, and what must have become of it some time after
// the last of them.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "tests/simulation/clock.hpp"
#include "tests/simulation/switches.hpp"

namespace ddp::simulation {

struct HistoryOptions {
  bool as_json = false;    // messages go through their texts
  bool has_ports = false;  // the endpoint is at one of several, others have some of the rest
  std::set<Fault> faults;  // that befall it beside those of every history
  std::function<void(const std::string& line)> trace;  // if wanted
};

struct HistoryResult {
  std::string violation;  // empty: none
  std::uint64_t events = 0;
  std::size_t rounds = 0;     // that were begun
  std::size_t completed = 0;  // in which a collective could complete
  int faults = 0;
  FaultCounts drawn{};           // of HistoryOptions::faults
  std::size_t late_answers = 0;  // of slow files
  std::size_t blamed_right = 0;  // killed workers whose end was reported late, and who were named as the cause
  bool goes_on = false;          // in the end; else the job has ended
};

HistoryResult play(std::uint64_t seed, const HistoryOptions& options);

}  // namespace ddp::simulation
