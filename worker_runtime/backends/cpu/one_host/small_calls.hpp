// Collectives of little data, in one phase: every rank shows its input with its arrival, and once all have arrived
// takes from all what it needs. With a few bytes that is one cache line for each rank. Every rank that reduces does all
// of the sum: beyond a size that is slower than to share it.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "worker_runtime/backends/cpu/arrivals/arrivals.hpp"
#include "worker_runtime/backends/cpu/one_host/shape.hpp"
#include "worker_runtime/backends/cpu/one_host/staging.hpp"

namespace ddp::cpu_backend {

class SmallCalls {
 public:
  SmallCalls(int rank, int size, Arrivals& arrivals, const Staging& staging);

  // Whether a call is small: so it is for all ranks that call the same.
  bool has(const Shape& shape) const { return shape.input_bytes() <= bytes_max_; }

  // Shows what this rank gives: after its post, before it arrives.
  void give(const Collective& collective, const Shape& shape);

  // Once all have arrived: gets hold of the memory that the next such call will write.
  void prepare_next(const Shape& shape) const;

  // Once all have arrived, and have called the same.
  void take(const Collective& collective, const Shape& shape);

 private:
  int rank_;
  Arrivals& arrivals_;
  const Staging& staging_;
  std::size_t bytes_max_;
  std::vector<std::byte> from_lines_;      // what stood in the ranks' lines
  std::vector<const std::byte*> sources_;  // kept, so that no call allocates
};

}  // namespace ddp::cpu_backend
