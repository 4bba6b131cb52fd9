// The collectives of a group whose ranks are all on this host: which algorithm moves the data of a call.
//
//   small_calls  little data, shown with the arrival: one phase
//   in_place     every rank has registered the memory: one phase to begin, one to end
//   staged       plain memory, through memory that the ranks share, by the caches or past them
//   from_peers   plain memory, where the ranks may read each other's; for large calls, if that is faster
//   (AlgorithmTimes)
//
// Every rank uses the same algorithm, because it depends on what all ranks have posted, and for large calls on what one
// rank has said in the last one. All of them put elements together with the same code in the order of ranks, so they
// give the same bits.
//
// Threads: one caller at a time.
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/backends/cpu/one_host/from_peers.hpp"
#include "worker_runtime/backends/cpu/one_host/in_place.hpp"
#include "worker_runtime/backends/cpu/one_host/small_calls.hpp"
#include "worker_runtime/backends/cpu/one_host/staged.hpp"
#include "worker_runtime/backends/cpu/one_host/staging.hpp"
#include "worker_runtime/backends/cpu/one_host/steps.hpp"
#include "worker_runtime/backends/cpu/one_host/algorithm_times.hpp"

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
  int decider_of(const Collective& collective) const;
  bool run_on_plain_memory(const Collective& collective, const Shape& shape, Algorithm algorithm, Steps& steps);
  bool all_are_at(std::uint64_t location) const;
  std::uint64_t address_for_peers(const Collective& collective, const Shape& shape, bool is_registered) const;
  bool may_read_peers();

  int rank_;
  int size_;
  Arrivals& arrivals_;
  const SharedMemory& memory_;
  const PeerMemory& peers_;
  bool can_read_;  // the ranks each other's plain memory; the same on all ranks
  Staging staging_;
  SmallCalls small_;
  InPlace in_place_;
  Staged staged_;
  FromPeers from_peers_;

  // Of large calls, by kind, type, the rank that decides, and size to a factor of two.
  struct Choice {
    Algorithm next = Algorithm::cached;  // of the next call, on all ranks alike
    AlgorithmTimes times;                // of the rank that decides
  };
  std::map<std::tuple<CollectiveKind, DataType, int, int>, Choice> choices_;
};

}  // namespace ddp::cpu_backend
