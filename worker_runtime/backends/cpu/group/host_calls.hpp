// The collectives of a group whose ranks are on several hosts, and what its ranks tell each other beside these.
//
// Threads: those of the queue's jobs, one at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"
#include "worker_runtime/backends/cpu/group/host_news.hpp"
#include "worker_runtime/backends/cpu/group/members.hpp"
#include "worker_runtime/backends/cpu/group/phases.hpp"
#include "worker_runtime/backends/cpu/hosts/host_collectives.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"

namespace ddp::cpu_backend {

class HostCalls {
 public:
  // All of these outlive this object.
  HostCalls(const Members& members, const SharedMemory& memory, Arrivals& arrivals, PresentCall& call, HostNews& news,
            Phases& phases)
      : members_(members), memory_(memory), arrivals_(arrivals), call_(call), news_(news), phases_(phases) {}

  // With the staging of HostCollectives. Before it only gather() works.
  void begin(std::shared_ptr<Segment> staging) {
    collectives_.emplace(members_.layout, members_.who.rank, std::move(staging));
  }

  void run(const Collective& collective, base::Deadline& deadline);

  // Shows the leader, before this rank meets, until when this rank waits in its call.
  void post_deadline(const base::Deadline& deadline);

  // A call without data: after the ranks of the host have posted it and met, all ranks compare it.
  void require_same_calls(const std::vector<Fingerprint>& here, base::Deadline& deadline);

  // Meets. Then a few words of each rank, by place in the layout: words_of(i) are those of rank i of this host. They
  // stay until the next call.
  std::span<const GatheredWords> gather(const std::function<GatheredWords(int index)>& words_of,
                                        base::Deadline& deadline);

 private:
  HostCollectives::Steps steps(base::Deadline& deadline, bool is_monitored = false);
  void require_same_calls(const Collective* collective, const std::vector<Fingerprint>& here,
                          const HostCollectives::Steps& steps);
  void meet_or_name_all(base::Deadline& deadline);
  void exchange(const HostCollectives::AmongLeaders& exchange, base::Deadline& deadline, bool is_monitored = false);
  base::Deadline earliest_deadline(const base::Deadline& own) const;

  const Members& members_;
  const SharedMemory& memory_;
  Arrivals& arrivals_;
  PresentCall& call_;
  HostNews& news_;
  Phases& phases_;
  std::optional<HostCollectives> collectives_;
};

}  // namespace ddp::cpu_backend
