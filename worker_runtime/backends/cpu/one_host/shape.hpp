// Who gives what to whom in a collective, as one rank sees it: the same description for every algorithm.
//
// What a rank gives, its input, is one share or one for each rank, equally large. A rank takes one share of one rank's
// input, or of every rank's: then it puts them together, or side by side in the order of ranks.
//
// Pure.
#pragma once

#include <cstddef>

#include "worker_runtime/core/failure/fingerprint.hpp"

namespace ddp::cpu_backend {

using process_group::Collective;
using process_group::CollectiveKind;

struct Shape {
  DataType type = DataType::float32;
  std::size_t count = 0;   // elements of a share
  std::size_t shares = 1;  // of an input
  bool gives = false;      // whether this rank's input goes to anybody
  int first_source = 0;    // this rank takes from these
  int source_count = 0;
  std::size_t taken_share = 0;  // of each of them
  bool reduces = false;         // puts together what it takes

  std::size_t share_bytes() const { return count * size_of(type); }
  std::size_t input_bytes() const { return shares * share_bytes(); }
};

// The counts are the same on all ranks that call the same.
Shape shape_of(const Collective& collective, int rank, int size);

inline const std::byte* input_of(const Collective& collective) {
  return static_cast<const std::byte*>(collective.input.data);
}
inline std::byte* output_of(const Collective& collective) { return static_cast<std::byte*>(collective.output.data); }

// Memory that may be one and the same, but does not overlap otherwise.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace ddp::cpu_backend
