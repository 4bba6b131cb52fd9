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
  bool as_json = false;       // messages go through their texts
  bool has_ports = false;     // the endpoint is at one of several, others have some of the rest
  bool has_seats = false;     // workers live on when their round is over, and wait for a seat in the next one
  bool has_look_ups = false;  // nodes look up where the endpoint is, and whether it is theirs
  bool checks_waits = false;  // see Waits
  std::set<Fault> faults;     // that befall it beside those of every history
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
  std::size_t seats_given = 0;   // to workers that had left the round before
  std::size_t killed_alone = 0;  // workers that were killed while others of their node lived on
  CallCounts failed_calls{};     // by Fault::failed_calls
  std::size_t refused_new = 0, refused_with_round = 0;  // nodes, by a daemon that was full
  std::size_t sockets_let_go = 0;  // of connections that an agent had given up, and whose other side still listened
  bool goes_on = false;            // in the end; else the job has ended
};

HistoryResult play(std::uint64_t seed, const HistoryOptions& options);

}  // namespace ddp::simulation
