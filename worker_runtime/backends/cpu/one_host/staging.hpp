// Memory of the group through which ranks hand on what the others can't see: a part for each rank, in two halves.
//
// Half [p % 2] of a rank's part belongs to phase p: it writes there before it arrives at p, and can do so again for
// phase p + 2, when all have entered p + 1. So what was given out with a phase can be read by ranks that are slow
// while the fast ones are in their next call; and, as a rank's part outlives its group, when they have left. Staged's
// streamed all_reduce alone writes there later, and meets once more in the end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

class Staging {
 public:
  // Of a half: larger blocks leave the core's cache, smaller ones meet more often; a line for each rank at least.
  static std::size_t half_bytes(int size) {
    return std::max(std::size_t{1} << 19, static_cast<std::size_t>(size) * kCacheLineBytes);
  }
  static std::size_t part_bytes(int size) { return 2 * half_bytes(size); }

  // `segment` has parts of part_bytes(size).
  Staging(int size, std::shared_ptr<Segment> segment) : half_bytes_(half_bytes(size)), segment_(std::move(segment)) {
    segment_->keep_own_part();
  }

  std::byte* half(int rank, int which) const {
    return segment_->part(rank) + static_cast<std::size_t>(which) * half_bytes_;
  }
  std::size_t half_bytes() const { return half_bytes_; }

 private:
  std::size_t half_bytes_;
  std::shared_ptr<Segment> segment_;
};

}  // namespace ddp::cpu_backend
