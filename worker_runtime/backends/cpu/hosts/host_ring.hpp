// What goes round the leaders of hosts, in place, where it is too large to be gathered: each leader receives from the
// host before it and sends to the one after it. In an all_reduce each byte goes round once as a part of a sum and once
// as a result, in a broadcast once, so no leader moves more than twice its memory however many hosts there are.
//
// In an all_reduce the elements are cut into a slice for each host (slice_of). The sum of slice h begins at host h and
// goes on in the order of hosts, over the last to the first; of two hosts it begins at host 0. What arrives is summed
// and sent on in pieces that stay in a core's cache; the result is written where the elements are, and there is no
// other memory but for one piece.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "worker_runtime/backends/cpu/hosts/host_streams.hpp"
#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

class HostRing {
 public:
  HostRing();

  // `elements` are of a type that is its own accumulator; an average divides by `ranks`.
  HostStreams::End all_reduce(HostStreams& streams, std::span<std::byte> elements, DataType type, ReduceOp op,
                              std::size_t ranks, const HostStreams::Wait& wait);

  // What `root` has -> `bytes` on all leaders, equally many.
  static HostStreams::End broadcast(HostStreams& streams, std::span<std::byte> bytes, int root,
                                    const HostStreams::Wait& wait);

 private:
  std::vector<std::byte> memory_;
  std::span<std::byte> piece_;  // of it, aligned
};

}  // namespace ddp::cpu_backend
