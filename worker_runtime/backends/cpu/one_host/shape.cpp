#include "worker_runtime/backends/cpu/one_host/shape.hpp"

#include <cstring>

namespace ddp::cpu_backend {

Shape shape_of(const Collective& collective, int rank, int size) {
  const bool is_root = rank == collective.root;
  Shape shape;
  switch (collective.kind) {
    case CollectiveKind::barrier:
    case CollectiveKind::allocate:
    case CollectiveKind::send:
    case CollectiveKind::receive:
    case CollectiveKind::all_gather_v:  // moved by UnevenCollectives
    case CollectiveKind::reduce_scatter_v:
    case CollectiveKind::all_to_all_v: return shape;
    case CollectiveKind::all_reduce:
    case CollectiveKind::all_gather:
      shape.count = collective.input.count;
      shape.gives = true;
      shape.source_count = size;
      break;
    case CollectiveKind::broadcast:
      shape.count = collective.input.count;
      shape.gives = is_root;
      shape.first_source = collective.root;
      shape.source_count = is_root ? 0 : 1;
      break;
    case CollectiveKind::reduce:
    case CollectiveKind::gather:
      shape.count = collective.input.count;
      shape.gives = true;
      shape.source_count = is_root ? size : 0;
      break;
    case CollectiveKind::reduce_scatter:
      shape.count = collective.output.count;
      shape.gives = true;
      shape.source_count = size;
      break;
    case CollectiveKind::scatter:
      shape.count = collective.output.count;
      shape.gives = is_root;
      shape.first_source = collective.root;
      shape.source_count = 1;
      break;
    case CollectiveKind::all_to_all:
      shape.count = collective.input.count / static_cast<std::size_t>(size);
      shape.gives = true;
      shape.source_count = size;
      break;
  }
  const bool is_divided = collective.kind == CollectiveKind::reduce_scatter ||
                          collective.kind == CollectiveKind::scatter || collective.kind == CollectiveKind::all_to_all;
  if (is_divided) {
    shape.shares = static_cast<std::size_t>(size);
    shape.taken_share = static_cast<std::size_t>(rank);
  }
  shape.reduces = process_group::has_op(collective.kind);
  shape.type = collective.input.type;  // which is that of the output, wherever a rank has but one of them
  return shape;
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace ddp::cpu_backend
