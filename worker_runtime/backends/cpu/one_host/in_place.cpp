#include "worker_runtime/backends/cpu/one_host/in_place.hpp"

#include <algorithm>

#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

ConstMemoryRange memory_for_others(const Collective& collective) {
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::broadcast:
    case CollectiveKind::all_gather: return collective.output;
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::reduce:
    case CollectiveKind::gather:
    case CollectiveKind::all_to_all: return collective.input;
    case CollectiveKind::scatter:  // only root's, where only root can tell
    case CollectiveKind::barrier:
    case CollectiveKind::allocate:
    case CollectiveKind::send:
    case CollectiveKind::receive:
    case CollectiveKind::all_gather_v:
    case CollectiveKind::reduce_scatter_v:
    case CollectiveKind::all_to_all_v: break;
  }
  return {};
}

InPlace::InPlace(int rank, int size)
    : rank_(rank), size_(size), parts_(static_cast<std::size_t>(size)), sources_(static_cast<std::size_t>(size)) {}

void InPlace::run(const Collective& collective, const Shape& shape, const Placement& placement, Steps& steps) {
  for (int r = 0; r < size_; ++r) parts_[static_cast<std::size_t>(r)] = placement.in_part_of(r);
  const std::size_t bytes = shape.share_bytes();
  const Reduction reduction{shape.type, collective.op, parts_.size()};
  std::byte* const output = output_of(collective);
  const std::size_t taken = shape.taken_share * bytes;
  if (collective.kind == CollectiveKind::all_gather) {
    const std::size_t own = static_cast<std::size_t>(rank_) * bytes;
    for (std::byte* part : parts_) copy_bytes(part + own, input_of(collective), bytes);
  } else if (collective.kind == CollectiveKind::all_reduce) {  // a slice of it, for all
    std::copy(parts_.begin(), parts_.end(), sources_.begin());
    reduce(reduction, sources_, parts_, slice_of(shape.count, shape.type, rank_, size_));
  } else if (shape.reduces && shape.source_count > 0) {
    for (std::size_t r = 0; r < parts_.size(); ++r) sources_[r] = parts_[r] + taken;
    reduce(reduction, sources_, {&output, 1}, {0, shape.count});
  } else {
    for (int i = 0; i < shape.source_count; ++i) {
      const std::byte* const source = parts_[static_cast<std::size_t>(shape.first_source + i)];
      copy_bytes(output + static_cast<std::size_t>(i) * bytes, source + taken, bytes);
    }
  }
  steps.meet();
}

}  // namespace ddp::cpu_backend
