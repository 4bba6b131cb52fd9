// Collectives where the ranks are on several hosts. A call opens with an exchange among the leaders, in which a call
// that differs is found and little data goes along (gathered_collectives.hpp). The rest moves
//
//   - where every host has one rank, from and to the user's memory; an all_reduce and a broadcast go round in it
//     (host_ring.hpp), but for sums of float16 and bfloat16, which do so block by block, as a reduce and a
//     reduce_scatter;
//   - else block by block: the ranks of a host combine what they have into an area, which is in the leader's part of
//     the staging segment; the leaders exchange; every rank takes its own from there. While the leader exchanges one
//     block, the others combine the next. Where the memory of all ranks of a host is registered, it is read in place.
//
// A sum is formed over the ranks of each host, then over the hosts, in their order; but a large all_reduce or reduce
// begins with another host in each slice of its elements, or of each block (host_ring.hpp). So all ranks get the same
// bits, and the same layout gives them on every run. float16 and bfloat16 go from host to host as the float32 that they
// are accumulated in, so that they too are rounded once.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "worker_runtime/backends/cpu/hosts/gathered_collectives.hpp"
#include "worker_runtime/backends/cpu/hosts/host_opening.hpp"
#include "worker_runtime/backends/cpu/hosts/host_ring.hpp"
#include "worker_runtime/backends/cpu/hosts/host_streams.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/core/failure/fingerprint.hpp"

namespace ddp::cpu_backend {

using core::HostLayout;
using process_group::CollectiveKind;

class HostCollectives {
 public:
  // What leaders do together.
  using AmongLeaders = std::function<HostStreams::End(HostStreams&, const HostStreams::Wait&)>;
  struct Steps {
    std::function<void()> meet;                         // returns once every rank of the host has called it
    std::function<void()> meet_after_leaders;           // the same behind what the leaders do
    std::function<void(const AmongLeaders&)> exchange;  // the leader's; throws where it fails
  };

  // Of one rank's part of the staging segment.
  static std::size_t staging_bytes(const HostLayout& layout);
  static Gap unused_by(const HostLayout& layout, int rank);  // of its part

  HostCollectives(HostLayout layout, int rank, std::shared_ptr<Segment> staging);

  // A call in three steps. Before the ranks of the host have met:
  void stage(const Collective& collective);
  // Once they have, with what each of them calls; what they call has no data where `collective` is null. Whether all
  // ranks of the group call the same; if not, what rank r calls is call_of(r).
  bool open(const Collective* collective, const std::vector<Fingerprint>& calls, const Steps& steps);
  Fingerprint call_of(int rank) const;
  // If they do. `placement` is where all ranks of the host have the memory_for_others(), or null.
  void finish(const Collective& collective, const Placement* placement, const Steps& steps);

 private:
  struct Block;
  struct Verdict;

  Block block_at(const Collective& collective, std::size_t number, std::size_t begin) const;
  void broadcast(std::span<std::byte> bytes, int root, const Steps& steps);
  void move_in_users_memory(const Collective& collective, const Steps& steps);
  void run_blocks(const Collective& collective, const Placement* placement, const Steps& steps);
  void stage_block(const Collective& collective, const Block& block);
  void combine(const Collective& collective, const Block& block, const Placement* placement);
  void exchange(const Collective& collective, const Block& block, const Steps& steps);
  void set_parcels(const Collective& collective, const Block& block);
  void take(const Collective& collective, const Block& block) const;
  void take_reduced(const Collective& collective, const Block& block) const;

  bool is_leader() const { return index_ == 0; }
  std::size_t size() const { return static_cast<std::size_t>(layout_.size()); }
  std::size_t host_count() const { return static_cast<std::size_t>(layout_.host_count()); }
  std::size_t rank_count(int host) const { return layout_.ranks_of(host).size(); }
  std::byte* area(const Block& block) const;
  std::byte* received_area(const Block& block) const;
  std::span<std::byte> slots_of(int host, const Block& block) const;
  Verdict& verdict() const;

  HostLayout layout_;
  int rank_;
  int host_;
  int index_;       // among the ranks of the host
  int here_count_;  // of these
  std::shared_ptr<Segment> staging_;
  GatheredCollectives gathered_;
  HostOpening opening_;
  HostRing ring_;
  std::vector<const std::byte*> sources_;     // kept, so that no block allocates, as is the next
  std::vector<HostStreams::Parcel> parcels_;  // by host
  std::vector<std::byte> scratch_;            // the leader's: what comes from other hosts to be summed
};

}  // namespace ddp::cpu_backend
