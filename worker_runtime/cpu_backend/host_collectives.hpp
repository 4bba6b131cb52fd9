// How the data of each collective moves where the ranks are on several hosts, block by block: the ranks of a host
// combine what they have into the exchange area, which is the leader's part of the staging segment; the leaders
// exchange; and every rank takes its own from the area. Where the memory of all ranks of a host is registered, it is
// read in place.
//
// A sum is formed in a fixed order: over the ranks of each host, then over the hosts. So all ranks get the same bits,
// the same layout gives them on every run, and blocks, slices and registered memory change nothing. float16 and
// bfloat16 go from host to host as the float32 that they are accumulated in, so that they too are rounded once.
//
// Every rank calls run() with the same kind, type, counts and root, which is checked before (cpu_backend.cpp).
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "worker_runtime/cpu_backend/fingerprint.hpp"
#include "worker_runtime/cpu_backend/host_layout.hpp"
#include "worker_runtime/cpu_backend/host_streams.hpp"
#include "worker_runtime/cpu_backend/shared_memory.hpp"

namespace ddp::cpu_backend {

class HostCollectives {
 public:
  struct Steps {
    std::function<void()> meet;                // returns once every rank of the host has called it
    std::function<void()> meet_after_leaders;  // the same behind what the leaders exchange
    std::function<void(std::span<const HostStreams::Parcel>)> transfer;  // the leader's: one exchange, by host
  };

  // Of one rank's part of the staging segment.
  static std::size_t staging_bytes(int size);

  HostCollectives(HostLayout layout, int rank, std::shared_ptr<Segment> staging);

  // `placement` is where all ranks of the host have the memory_for_others(), or null.
  void run(const Collective& collective, const Placement* placement, const Steps& steps);

 private:
  struct Block;

  Block block_at(const Collective& collective, std::size_t begin) const;
  void stage(const Collective& collective, const Block& block);
  void combine(const Collective& collective, const Block& block, const Placement* placement);
  void exchange(const Collective& collective, const Block& block, const Steps& steps);
  void all_reduce(const Collective& collective, const Block& block, const Steps& steps);
  void reduce_scatter(const Collective& collective, const Block& block, const Steps& steps);
  void take(const Collective& collective, const Block& block) const;

  bool is_leader() const { return index_ == 0; }
  std::byte* slots_of(int host, const Block& block) const;
  std::size_t slot_bytes(int host, const Block& block) const;
  std::size_t host_count() const { return static_cast<std::size_t>(layout_.host_count()); }

  HostLayout layout_;
  int rank_;
  int host_;
  int index_;       // among the ranks of the host
  int here_count_;  // of these
  std::shared_ptr<Segment> staging_;
  std::byte* area_;
  std::vector<const std::byte*> sources_;   // kept, so that no block allocates
  std::vector<HostStreams::Parcel> parcels_;  // by host
  std::vector<std::byte> scratch_;          // the leader's: what comes from other hosts to be summed
};

}  // namespace ddp::cpu_backend
