// What a collective says of its elements, the same on every rank, whichever of its ranges are empty there.
#pragma once

#include <cstddef>

#include "worker_runtime/backends/cpu/one_host/shape.hpp"
#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

// Whether ranks that are not root have no output; all have an input then.
inline bool is_of_input(CollectiveKind kind) {
  return kind == CollectiveKind::reduce || kind == CollectiveKind::gather;
}

inline DataType type_of(const Collective& collective) {
  return is_of_input(collective.kind) ? collective.input.type : collective.output.type;
}

// Elements that a rank gives to each other or gets from it, where they are not the same for all; all of them otherwise.
inline std::size_t count_per_rank(const Collective& collective, int size) {
  return shape_of(collective, 0, size).count;
}

// What the elements are while they are exchanged between hosts.
inline DataType exchanged_type(const Collective& collective) {
  const DataType type = type_of(collective);
  return process_group::has_op(collective.kind) ? accumulator_of(type) : type;
}

}  // namespace ddp::cpu_backend
