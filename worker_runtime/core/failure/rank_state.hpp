// What one rank knows of another, for messages.
#pragma once

#include <cstdint>

#include "worker_runtime/core/failure/fingerprint.hpp"

namespace ddp::core {

// What a rank has to do with its group. The calls that it made before still count.
enum class Presence : std::uint32_t {
  here,
  left,            // it destroyed its ProcessGroup
  aborted,         // by abort()
  gave_up,         // after a failure of its own
  protocol_error,  // it sent bytes that no rank of the group sends

  // Never said by the rank itself:
  unreachable,  // its connection has broken, or its host has gone silent
};

struct RankState {
  int rank = 0;  // in the group
  int pid = 0;   // 0 where it is not known
  Presence presence = Presence::here;
  std::uint64_t calls = 0;  // it has made
  Fingerprint last_call{};  // if it has made any
  bool has_told = true;     // whether the last two are known
};

}  // namespace ddp::core
