// Sends and receives of one rank, and how they end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/cpu_backend/control_block.hpp"
#include "worker_runtime/cpu_backend/fingerprint.hpp"

namespace ddp::cpu_backend {

inline bool is_pair_call(CollectiveKind kind) {
  return kind == CollectiveKind::send || kind == CollectiveKind::receive;
}

struct PairEnd {
  enum class Kind : std::uint8_t { complete, lost, mismatch, timed_out, interrupted };
  Kind kind = Kind::complete;
  std::size_t call = 0;      // which of the calls did not come to its end; the rest is about that one
  std::uint64_t number = 0;  // of the message among those from one rank to the other, from 1
  bool has_met = false;      // whether the peer had come to it
  Fingerprint theirs{};      // of a mismatch: what the peer called
  Presence presence = Presence::here;  // of a lost peer on another host, as far as it has told
};

}  // namespace ddp::cpu_backend
