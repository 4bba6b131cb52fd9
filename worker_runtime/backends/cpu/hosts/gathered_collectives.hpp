// Collectives among hosts whose data is so little that it goes along with the opening of the call: the leader puts
// together what the ranks of its host have, all leaders gather that of all hosts, and every rank makes its output of
// it.
//
// Sums are formed over the ranks of each host, then over the hosts, in their order.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "worker_runtime/backends/cpu/hosts/host_opening.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::cpu_backend {

using core::HostLayout;
using process_group::Collective;

class GatheredCollectives {
 public:
  // `area` is memory that all ranks of the host see; each rank stages at the start of its part of the segment. Both
  // have room for area_bytes().
  GatheredCollectives(const HostLayout& layout, int rank, std::shared_ptr<Segment> staging, std::byte* area);
  static std::size_t area_bytes(const HostLayout& layout);

  // Whether a call is one of these; the same on all ranks that make it.
  bool takes(const Collective& collective) const;
  // What a host adds to the opening.
  std::size_t bytes_of(const Collective& collective, int host) const;

  // A rank's first step; the next is the leader's, once all ranks of the host have done theirs.
  void stage(const Collective& collective);
  std::span<const std::byte> put_together(const Collective& collective);
  // The leader's, after the opening, and the last of every rank, once the leader has done that.
  void hand_out(const Collective& collective, const HostOpening& opening);
  void finish(const Collective& collective);

 private:
  bool is_alone() const { return layout_.ranks_of(host_).size() == 1; }
  std::size_t size() const { return static_cast<std::size_t>(layout_.size()); }
  const std::byte* part_of(const Collective& collective, int rank) const;
  void total(const Collective& collective, std::size_t at_bytes);

  HostLayout layout_;
  int rank_, host_;
  std::shared_ptr<Segment> staging_;
  std::byte* area_;
  std::vector<const std::byte*> of_hosts_;  // what each host added
  std::vector<const std::byte*> sources_;   // kept, so that no call allocates
};

}  // namespace ddp::cpu_backend
