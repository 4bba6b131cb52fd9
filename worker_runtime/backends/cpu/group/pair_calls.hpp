// The sends and receives of a group: those to ranks of this host through shared memory, those to other hosts by TCP.
//
// Threads: run() those of the queue's jobs, one at a time; the rest any, once open() has returned.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"
#include "worker_runtime/backends/cpu/group/host_calls.hpp"
#include "worker_runtime/backends/cpu/group/members.hpp"
#include "worker_runtime/backends/cpu/group/present_call.hpp"
#include "worker_runtime/backends/cpu/group/rank_states.hpp"
#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/backends/cpu/pairs/peer_messages.hpp"
#include "worker_runtime/backends/cpu/pairs/point_to_point.hpp"
#include "worker_runtime/core/operation/group_status.hpp"

namespace ddp::cpu_backend {

class PairCalls {
 public:
  // All of these outlive this object.
  struct Parts {
    const Members& members;
    const SharedMemory& memory;
    const PeerMemory& peer_memory;
    Arrivals& arrivals;
    const RankStates& states;
    const core::GroupStatus& status;
    PresentCall& call;
  };

  explicit PairCalls(const Parts& parts);

  // The memory behind `offset` bytes of each part of the segment. Nothing can be run before.
  void attach(std::shared_ptr<Segment> segment, std::size_t offset) { here_.attach(std::move(segment), offset); }

  // With several hosts. Collective: every rank shows the ranks of other hosts where it listens.
  void open(HostCalls& hosts, base::Deadline& deadline);

  // Throws Error if a call, or any call to another host, can't be made for lack of a port: both sides of a pair come to
  // the same conclusion. The group goes on without these calls.
  void require_listeners(std::span<const Collective> calls) const;
  void require_all_listeners() const;

  // The sends and receives among some calls, all at once.
  void run(std::span<const Collective> calls, base::Deadline& deadline);

  // The run looks again whether a peer of this host is there.
  void wake() { here_.wake(); }

  // Ends all runs: this rank leaves the group.
  void close(Presence how);

 private:
  void receive_from_any(const Collective& call, base::Deadline& deadline);
  PairEnd wait_for_any(const Collective& call, base::Deadline& deadline);
  PairEnd wait_for_any_here(const Collective& call, FirstMessage* first, base::Deadline& deadline);
  std::vector<int> ranks_afar() const;

  // Both at once, on two threads. If one does not complete, the other stops.
  struct PairEnds {
    PairEnd here, afar;
    const PairEnd& cause() const;  // the one that did not complete by itself; else `here`
  };
  PairEnds run_here_and_afar(const std::function<PairEnd()>& here, const std::function<PairEnd()>& afar);
  void exchange_here_and_afar(std::span<const Collective> here, std::span<const int> peers,
                              std::span<const Collective> afar, base::Deadline& deadline);
  void wake_afar();
  [[noreturn]] void fail(std::span<const Collective> calls, const PairEnd& end, const base::Deadline& deadline);
  core::RankState state_after(const PairEnd& end, int peer) const;

  Parts parts_;
  std::atomic<bool> is_over_{false};  // while both are at work: one of them has failed
  PointToPoint here_;
  std::optional<PeerMessages> afar_;
};

}  // namespace ddp::cpu_backend
