// Collectives on memory that every rank has at the same place of its part of a segment (SharedMemory): ranks work on
// each other's memory directly.
//
// Threads: one caller at a time.
#pragma once

#include <vector>

#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/backends/cpu/one_host/shape.hpp"
#include "worker_runtime/backends/cpu/one_host/steps.hpp"

namespace ddp::cpu_backend {

// The memory of a rank that others read or write then.
ConstMemoryRange memory_for_others(const Collective& collective);

class InPlace {
 public:
  InPlace(int rank, int size);

  // Requires that all ranks have called the same, with the memory_for_others() at `placement`.
  void run(const Collective& collective, const Shape& shape, const Placement& placement, Steps& steps);

 private:
  int rank_;
  int size_;
  std::vector<std::byte*> parts_;  // kept, so that no call allocates
  std::vector<const std::byte*> sources_;
};

}  // namespace ddp::cpu_backend
