// One history: a job, drawn from the seed, the faults that befall it, and what must have become of it some time after
// the last of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tests/simulation/clock.hpp"

namespace ddp::simulation {

struct HistoryOptions {
  bool as_json = false;    // messages go through their texts
  bool has_ports = false;  // the endpoint is at one of several, others have some of the rest
  std::function<void(const std::string& line)> trace;  // if wanted
};

struct HistoryResult {
  std::string violation;  // empty: none
  std::uint64_t events = 0;
  std::size_t rounds = 0;     // that were begun
  std::size_t completed = 0;  // in which a collective could complete
  int faults = 0;
  bool goes_on = false;  // in the end; else the job has ended
};

HistoryResult play(std::uint64_t seed, const HistoryOptions& options);

}  // namespace ddp::simulation
