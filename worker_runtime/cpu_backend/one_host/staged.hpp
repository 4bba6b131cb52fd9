// Collectives on memory that only its own process sees, block by block through the staging: always possible.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "worker_runtime/cpu_backend/one_host/shape.hpp"
#include "worker_runtime/cpu_backend/one_host/steps.hpp"
#include "worker_runtime/cpu_backend/one_host/staging.hpp"

namespace ddp::cpu_backend {

class Staged {
 public:
  Staged(int rank, int size, const Staging& staging);

  // Requires that all ranks have called the same. `half` is the one that belongs to the next phase.
  void run(const Collective& collective, const Shape& shape, int half, Steps& steps);

 private:
  struct Block;

  Block block_at(const Shape& shape, std::size_t begin, int half) const;
  void stage(const Collective& collective, const Shape& shape, const Block& block);
  void combine(const Collective& collective, const Shape& shape, const Block& block);

  int rank_;
  int size_;
  const Staging& staging_;
  std::vector<std::byte*> parts_;  // kept, so that no call allocates
  std::vector<const std::byte*> sources_;
};

}  // namespace ddp::cpu_backend
