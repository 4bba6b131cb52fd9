// Collectives on plain memory that ranks read from each other (PeerMemory): no rank copies what it gives.
//
// What is put together is read in blocks, into scratch memory that stays in the core's cache; the rest goes straight to
// where it belongs. A rank writes to its own memory alone, so one that has fallen behind does no harm.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"
#include "worker_runtime/backends/cpu/one_host/shape.hpp"
#include "worker_runtime/backends/cpu/one_host/steps.hpp"
#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

class FromPeers {
 public:
  FromPeers(int rank, int size, const PeerMemory& peers);

  // Where the input of each rank begins, as its own process has it; any number but 0 for one that gives nothing.
  void set_input(int rank, std::uint64_t address) { inputs_[static_cast<std::size_t>(rank)] = address; }

  // Requires that all ranks have called the same, and the inputs.
  void run(const Collective& collective, const Shape& shape, Steps& steps);

 private:
  void read(int rank, std::size_t offset_bytes, std::byte* to, std::size_t bytes, Steps& steps) const;
  void reduce_slice(const Collective& collective, const Shape& shape, Slice slice, std::byte* output, Steps& steps);

  int rank_;
  int size_;
  const PeerMemory& peers_;
  std::vector<std::uint64_t> inputs_;
  std::vector<std::byte> scratch_;
  std::vector<const std::byte*> sources_;  // kept, so that no call allocates
};

}  // namespace ddp::cpu_backend
