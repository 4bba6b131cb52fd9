// Collectives on plain memory that ranks read from each other (PeerMemory): no rank copies what it gives.
//
// A reduction reads blocks into scratch memory that stays in the core's cache. All other data goes straight to its
// destination. A rank writes to its own memory only, so a rank that has fallen behind does no harm.
//
// The kernel may refuse a read at any time, because a peer has become non-dumpable, a sandbox has closed, or a page
// can't be read. The peer may be alive and well. So the ranks tell each other at the end of each phase what they could
// not read, and hand that over through the staging.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"
#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"
#include "worker_runtime/backends/cpu/one_host/shape.hpp"
#include "worker_runtime/backends/cpu/one_host/staged.hpp"
#include "worker_runtime/backends/cpu/one_host/staging.hpp"
#include "worker_runtime/backends/cpu/one_host/steps.hpp"
#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

class FromPeers {
 public:
  FromPeers(int rank, int size, Arrivals& arrivals, const PeerMemory& peers, const Staging& staging, Staged& staged);

  // Where the input of each rank begins, as its own process has it; any number but 0 for one that gives nothing.
  void set_input(int rank, std::uint64_t address) { inputs_[static_cast<std::size_t>(rank)] = address; }

  // Requires that all ranks have called the same, and the inputs. Returns whether every rank could read all that it
  // needed; the result is right in any case.
  bool run(const Collective& collective, const Shape& shape, Steps& steps);

 private:
  // Elements of the ranks' inputs that one rank reduces.
  Slice part_of(const Collective& collective, const Shape& shape, int rank) const;

  // These three return how much could not be read: elements at the end of this rank's part; 0 or 1.
  std::size_t reduce_part(const Collective& collective, const Shape& shape, Steps& steps);
  std::size_t read_shares(const Collective& collective, const Shape& shape, Steps& steps) const;
  std::size_t read_slices(const Collective& collective, const Shape& shape, Steps& steps) const;

  // Meets, and tells the other ranks how much this rank could not read. Returns whether that is 0 on all ranks.
  bool all_have_read(std::size_t unread, Steps& steps);

  // What was not read, through the staging.
  void stage_parts(const Collective& collective, const Shape& shape, Steps& steps);
  void stage_slices(const Collective& collective, const Shape& shape, Steps& steps);

  bool read(int rank, std::size_t offset_bytes, std::byte* to, std::size_t bytes, Steps& steps) const;
  void reduce_sources(const Collective& collective, const Shape& shape, std::size_t begin, std::size_t count);

  int rank_;
  int size_;
  Arrivals& arrivals_;
  const PeerMemory& peers_;
  const Staging& staging_;
  Staged& staged_;
  std::vector<std::uint64_t> unread_;  // by rank, as told last
  std::vector<std::uint64_t> inputs_;
  std::vector<std::byte> scratch_;
  std::vector<const std::byte*> sources_;  // kept, so that no call allocates
};

}  // namespace ddp::cpu_backend
