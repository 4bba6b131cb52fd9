// Memory that all ranks of a group make together, and what they may do with each other's own memory.
//
// Threads: those of the queue's jobs, one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/deadline.hpp"
#include "worker_runtime/backends/cpu/group/host_calls.hpp"
#include "worker_runtime/backends/cpu/group/members.hpp"
#include "worker_runtime/backends/cpu/group/phases.hpp"
#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"

namespace ddp::cpu_backend {

class JointMemory {
 public:
  // All of these outlive this object.
  JointMemory(const Members& members, SharedMemory& memory, Phases& phases, HostCalls& hosts)
      : members_(members),
        memory_(memory),
        phases_(phases),
        hosts_(hosts),
        peer_memory_(members.pids_here(), members.index) {}

  // What a rank could not do for an allocation.
  struct Refusal {
    int rank = 0;
    int error = 0;                                        // an errno
    std::uint64_t needed_bytes = 0, available_bytes = 0;  // by all ranks of its host, when it was refused
    bool is_by_system = false;                            // there seemed to be enough of it before
  };
  struct Reserved {
    std::shared_ptr<Segment> segment;  // null if refused
    std::optional<Refusal> refusal;    // the same on all ranks
  };

  // Collective: a segment with parts of `bytes`, on all ranks or on none. Throws if ranks do not meet; a refusal leaves
  // the group as it was.
  Reserved reserve(std::size_t bytes, base::Deadline& deadline, Gap unused = {});

  // The segment, or throws Error with the refusal.
  std::shared_ptr<Segment> segment_of(Reserved reserved, std::size_t bytes) const;

  // Collective: finds out whether the ranks of this host can read each other's plain memory.
  void probe_peer_memory(base::Deadline& deadline);
  const PeerMemory& peer_memory() const { return peer_memory_; }

 private:
  std::optional<Refusal> first_refusal(std::size_t step, const SharedMemory::Room& own, base::Deadline& deadline);
  std::string reason_of(const Refusal& refusal) const;

  const Members& members_;
  SharedMemory& memory_;
  Phases& phases_;
  HostCalls& hosts_;
  PeerMemory peer_memory_;
};

}  // namespace ddp::cpu_backend
