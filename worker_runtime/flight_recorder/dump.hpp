// What the flight recorder holds, as JSON and as the pickle that PyTorch's analyser `torchfrtrace` reads. Both say the
// same; the keys are PyTorch's, and those of ours beside them (docs/flight_recorder.md).
//
// Pure. Source of the keys: PyTorch 2.15, torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, and the reader in
// torch/distributed/flight_recorder/.
#pragma once

#include <cstdint>
#include <string>

#include "worker_runtime/flight_recorder/recorder.hpp"

namespace ddp::flight_recorder {

// What goes with the entries.
struct DumpFacts {
  int rank = 0;     // of the whole job
  RoundId round{};  // of the group that failed
  int pid = 0;
  std::string host{};
  std::string reason{};  // of the failure
  TimePoint at{};
};

// Only what belongs to this round (GroupStatus): the ranks of another are others, and can't be compared with these.
Snapshot of_round(Snapshot snapshot, std::uint64_t round_count);

// Of snapshots that of_round() made. Records are counted from the start of the round.
std::string to_json(const Snapshot& snapshot, const DumpFacts& facts);
std::string to_pickle(const Snapshot& snapshot, const DumpFacts& facts);

}  // namespace ddp::flight_recorder
