// Sums what arrives of a slice with the elements of this host (host_ring.hpp). What arrives goes into a piece of memory
// that stays in a core's cache; the sums are written where the elements are.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <span>

#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"

namespace ddp::cpu_backend {

class RingSum {
 public:
  // `piece`: whole cache lines. An average divides by `ranks`.
  RingSum(std::span<std::byte> piece, DataType type, ReduceOp op, std::size_t ranks)
      : piece_(piece), type_(type), op_(op), ranks_(ranks) {}

  // For what arrives next. `rest_bytes`: of the slice, not summed yet.
  std::span<std::byte> room(std::size_t rest_bytes) const;

  struct Part {
    bool completes_sum = false;       // no other host adds to it
    bool own_elements_first = false;  // in the order of the sum
  };
  // Takes in that `bytes` have arrived in room(). `rest`: this host's elements of the slice, not summed yet. Returns
  // how many bytes of them are sums now: all that has arrived, in whole cache lines but for the end of the slice.
  std::size_t take(std::size_t bytes, std::span<std::byte> rest, Part part);

 private:
  std::span<std::byte> piece_;
  DataType type_;
  ReduceOp op_;
  std::size_t ranks_;
  std::size_t filled_ = 0, summed_ = 0;  // bytes of the piece
};

}  // namespace ddp::cpu_backend
