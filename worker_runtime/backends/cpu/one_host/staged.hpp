// Collectives on memory that only its own process sees, block by block through the staging: always possible.
//
// Through the caches each rank stages all it gives, and of an all_reduce writes its slice to everybody's staging. Past
// the caches, where every byte counts that goes to memory, it stages of an all_reduce what the others put together, a
// slice for each; then, where its own slice would have stood, what it has put together itself, which the others copy.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "worker_runtime/backends/cpu/one_host/shape.hpp"
#include "worker_runtime/backends/cpu/one_host/staging.hpp"
#include "worker_runtime/backends/cpu/one_host/steps.hpp"

namespace ddp::cpu_backend {

class Staged {
 public:
  Staged(int rank, int size, const Staging& staging);

  // Requires that all ranks have called the same, and stream all or none. `half` is the one that belongs to the next
  // phase.
  void run(const Collective& collective, const Shape& shape, int half, bool streams, Steps& steps);

 private:
  struct Block;

  Block block_at(const Shape& shape, std::size_t begin, int half) const;
  void stage(const Collective& collective, const Shape& shape, const Block& block);
  void stage_for_others(const Collective& collective, const Shape& shape, const Block& block);
  void combine(const Collective& collective, const Shape& shape, const Block& block);
  void reduce_own_slice(const Collective& collective, const Shape& shape, const Block& block);
  void take_slices(const Collective& collective, const Shape& shape, const Block& block) const;
  void put(std::byte* to, const std::byte* from, std::size_t bytes) const;

  int rank_;
  int size_;
  const Staging& staging_;
  bool streams_ = false;           // the present call
  std::vector<std::byte*> parts_;  // kept, so that no call allocates
  std::vector<const std::byte*> sources_;
};

}  // namespace ddp::cpu_backend
