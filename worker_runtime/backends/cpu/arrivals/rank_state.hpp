// What one rank knows of another, for messages.
#pragma once

#include <cstdint>

#include "worker_runtime/backends/cpu/arrivals/control_block.hpp"
#include "worker_runtime/backends/cpu/arrivals/fingerprint.hpp"

namespace ddp::cpu_backend {

struct RankState {
  int rank = 0;  // in the group
  int pid = 0;   // 0 where it is not known
  Presence presence = Presence::here;
  std::uint64_t calls = 0;  // it has made
  Fingerprint last_call{};  // if it has made any
  bool has_told = true;     // whether the last two are known
};

}  // namespace ddp::cpu_backend
