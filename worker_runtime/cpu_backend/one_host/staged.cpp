#include "worker_runtime/cpu_backend/one_host/staged.hpp"

#include <algorithm>

#include "worker_runtime/cpu_backend/reduce/reduce.hpp"

namespace ddp::cpu_backend {

// A piece of every share, small enough for half a part of the staging.
struct Staged::Block {
  std::size_t count = 0;  // of the elements of a share
  std::size_t begin_bytes = 0;
  std::size_t bytes = 0;
  std::size_t stride_bytes = 0;  // from one share to the next where it is staged
  int half = 0;
};

Staged::Staged(int rank, int size, const Staging& staging)
    : rank_(rank),
      size_(size),
      staging_(staging),
      parts_(static_cast<std::size_t>(size)),
      sources_(static_cast<std::size_t>(size)) {}

// While one block is put together, the next one is staged already.
void Staged::run(const Collective& collective, const Shape& shape, int half, Steps& steps) {
  if (shape.count == 0) return;
  const bool is_shared_work = collective.kind == CollectiveKind::all_reduce;
  Block block = block_at(shape, 0, half);
  stage(collective, shape, block);
  steps.meet();
  for (std::size_t end = block.count;;) {
    combine(collective, shape, block);
    const Block next = block_at(shape, end, 1 - block.half);
    if (next.count > 0) stage(collective, shape, next);
    if (next.count > 0 || is_shared_work) steps.meet();
    if (is_shared_work) {
      copy_bytes(output_of(collective) + block.begin_bytes, staging_.half(rank_, block.half), block.bytes);
    }
    if (next.count == 0) return;
    end += next.count;
    block = next;
  }
}

Staged::Block Staged::block_at(const Shape& shape, std::size_t begin, int half) const {
  const std::size_t element_bytes = size_of(shape.type);
  const std::size_t lines = staging_.half_bytes() / shape.shares / kCacheLineBytes;
  Block block;
  block.count = std::min(lines * (kCacheLineBytes / element_bytes), shape.count - begin);
  block.begin_bytes = begin * element_bytes;
  block.bytes = block.count * element_bytes;
  block.stride_bytes = lines * kCacheLineBytes;
  block.half = half;
  return block;
}

// This rank's input -> its staging.
void Staged::stage(const Collective& collective, const Shape& shape, const Block& block) {
  if (!shape.gives) return;
  std::byte* const own = staging_.half(rank_, block.half);
  const std::byte* const from = input_of(collective) + block.begin_bytes;
  for (std::size_t share = 0; share < shape.shares; ++share) {
    copy_bytes(own + share * block.stride_bytes, from + share * shape.share_bytes(), block.bytes);
  }
}

// Everybody's staging -> this rank's output; of an all_reduce a slice of it -> everybody's staging.
void Staged::combine(const Collective& collective, const Shape& shape, const Block& block) {
  const bool is_shared_work = collective.kind == CollectiveKind::all_reduce;
  for (int r = 0; r < size_; ++r) {
    parts_[static_cast<std::size_t>(r)] = staging_.half(r, block.half) + shape.taken_share * block.stride_bytes;
  }
  std::copy(parts_.begin(), parts_.end(), sources_.begin());
  const Reduction reduction{shape.type, collective.op, parts_.size()};
  if (is_shared_work) {
    return reduce(reduction, sources_, parts_, slice_of(block.count, shape.type, rank_, size_));
  }
  if (shape.source_count == 0) return;
  std::byte* const to = output_of(collective) + block.begin_bytes;
  if (shape.reduces) {
    reduce(reduction, sources_, {&to, 1}, {0, block.count});
  } else {
    for (int i = 0; i < shape.source_count; ++i) {
      copy_bytes(to + static_cast<std::size_t>(i) * shape.share_bytes(),
                 parts_[static_cast<std::size_t>(shape.first_source + i)], block.bytes);
    }
  }
}

}  // namespace ddp::cpu_backend
