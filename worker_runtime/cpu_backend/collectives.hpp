// How the data of each collective moves through shared memory. Where every rank's memory is at the same place of its
// part of a segment, ranks work on each other's memory directly; else it passes through the staging segment in blocks.
// Both ways sum with the same code, so they give the same bits.
//
// Every rank calls the same function with the same kind, type, counts and root, which is checked before
// (cpu_backend.cpp). `meet` returns once all ranks have called it as often as this rank.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "worker_runtime/cpu_backend/fingerprint.hpp"
#include "worker_runtime/cpu_backend/shared_memory.hpp"

namespace ddp::cpu_backend {

// Of this rank's part of the staging segment: a block is small enough to stay in a core's cache until it is read.
std::size_t staging_bytes(int size);

class Collectives {
 public:
  using Meet = std::function<void()>;

  // `staging` has parts of staging_bytes(size).
  Collectives(int rank, int size, std::shared_ptr<Segment> staging);

  // The memory that other ranks read or write if the collective works without staging; empty for a barrier.
  static ConstMemoryRange memory_for_others(const Collective& collective);

  // Without staging, on memory that all ranks have at `placement`. Requires that all ranks have called the collective.
  void run_in_place(const Collective& collective, const Placement& placement, const Meet& meet);

  // The first half of the first block of run_staged(), which needs no other rank.
  void stage_first_block(const Collective& collective);

  // The rest, once every rank has staged its first block.
  void run_staged(const Collective& collective, const Meet& meet);

 private:
  struct Block;

  Block block_at(const Collective& collective, std::size_t begin) const;
  void copy_in(const Collective& collective, const Block& block);
  void combine(const Collective& collective, const Block& block);
  void copy_out(const Collective& collective, const Block& block);
  void reduce_own_slice(const Collective& collective, std::size_t count);
  void reduce_own_part(const Collective& collective, std::size_t offset_bytes, std::byte* output, std::size_t count);

  int rank_;
  int size_;
  std::shared_ptr<Segment> staging_;
  std::vector<std::byte*> staged_;         // by rank: its part of the staging segment
  std::vector<std::byte*> parts_;          // by rank: the memory being worked on
  std::vector<const std::byte*> sources_;  // kept, so that no call allocates
};

}  // namespace ddp::cpu_backend
