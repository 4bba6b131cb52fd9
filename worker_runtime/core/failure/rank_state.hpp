// What one rank knows of another in a group.
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

// Whether a rank has told what it called.
enum class Answer : std::uint8_t {
  told,
  silent,     // it was asked, and did not answer in time
  not_asked,  // nothing is known of its calls
};

struct RankState {
  int rank = 0;  // in the group
  int pid = 0;   // 0: unknown
  Presence presence = Presence::here;
  std::uint64_t calls = 0;  // that the rank has made; this and the next only with Answer::told
  Fingerprint last_call{};  // if `calls` > 0
  Answer answer = Answer::told;
};

}  // namespace ddp::core
