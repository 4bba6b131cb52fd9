// The collectives of a group whose ranks are all on this host: which way the data of a call moves.
//
//   small_calls  little data, shown with the arrival: one phase
//   in_place     every rank has registered the memory: one phase to begin, one to end
//   staged       everything else
//
// Every rank takes the same way, because it depends on what all ranks have posted. All ways put elements together with
// the same code in the order of ranks, so they give the same bits.
//
// Threads: one caller at a time.
#pragma once

#include <functional>
#include <memory>

#include "worker_runtime/cpu_backend/arrivals.hpp"
#include "worker_runtime/cpu_backend/in_place.hpp"
#include "worker_runtime/cpu_backend/shared_memory.hpp"
#include "worker_runtime/cpu_backend/small_calls.hpp"
#include "worker_runtime/cpu_backend/staged.hpp"
#include "worker_runtime/cpu_backend/staging.hpp"

namespace ddp::cpu_backend {

class Collectives {
 public:
  struct Steps {
    Meet meet;
    std::function<void()> arrive;  // with wait() after it, the same as meet()
    std::function<void()> wait;
    std::function<void()> require_same_calls;  // throws where the present calls of all ranks differ
  };

  // `staging` has parts of Staging::part_bytes(size).
  Collectives(int rank, int size, Arrivals& arrivals, const SharedMemory& memory, std::shared_ptr<Segment> staging);
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  void run(const Collective& collective, const Steps& steps);

 private:
  bool all_are_at(std::uint64_t location) const;

  int rank_;
  int size_;
  Arrivals& arrivals_;
  const SharedMemory& memory_;
  Staging staging_;
  SmallCalls small_;
  InPlace in_place_;
  Staged staged_;
};

}  // namespace ddp::cpu_backend
