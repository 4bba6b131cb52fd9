// The collectives of a group whose ranks are all on this host: which way the data of a call moves.
//
//   small_calls  little data, shown with the arrival: one phase
//   in_place     every rank has registered the memory: one phase to begin, one to end
//   from_peers   ranks may read each other's plain memory
//   staged       everything else
//
// Every rank takes the same way, because it depends on what all ranks have posted. All ways put elements together with
// the same code in the order of ranks, so they give the same bits.
//
// Threads: one caller at a time.
#pragma once

#include <memory>

#include "worker_runtime/cpu_backend/arrivals/arrivals.hpp"
#include "worker_runtime/cpu_backend/memory/shared_memory.hpp"
#include "worker_runtime/cpu_backend/one_host/from_peers.hpp"
#include "worker_runtime/cpu_backend/one_host/in_place.hpp"
#include "worker_runtime/cpu_backend/one_host/small_calls.hpp"
#include "worker_runtime/cpu_backend/one_host/staged.hpp"
#include "worker_runtime/cpu_backend/one_host/staging.hpp"
#include "worker_runtime/cpu_backend/one_host/steps.hpp"

namespace ddp::cpu_backend {

class Collectives {
 public:
  // `staging` has parts of Staging::part_bytes(size).
  Collectives(int rank, int size, Arrivals& arrivals, const SharedMemory& memory, const PeerMemory& peers,
              std::shared_ptr<Segment> staging);
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  void run(const Collective& collective, Steps& steps);

 private:
  bool all_are_at(std::uint64_t location) const;
  std::uint64_t address_for_peers(const Collective& collective, const Shape& shape) const;
  bool may_read_peers();

  int rank_;
  int size_;
  Arrivals& arrivals_;
  const SharedMemory& memory_;
  const PeerMemory& peers_;
  Staging staging_;
  SmallCalls small_;
  InPlace in_place_;
  FromPeers from_peers_;
  Staged staged_;
};

}  // namespace ddp::cpu_backend
