#include "worker_runtime/backends/cpu/one_host/staged.hpp"

#include <algorithm>

#include "worker_runtime/backends/cpu/reduce/reduce.hpp"
#include "worker_runtime/tensor/stream_copy.hpp"

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kChunkBytes = 1u << 14;  // is still in the first cache when it is staged

}  // namespace

// A piece of every share, small enough for half a part of the staging.
struct Staged::Block {
  std::size_t count = 0;  // of the elements of a share
  std::size_t begin_bytes = 0;
  std::size_t bytes = 0;
  std::size_t stride_bytes = 0;  // from one share to the next where it is staged
  int half = 0;

  std::size_t whole_count = 0;  // what all blocks of the call but the last have

  // That of a rank: at the same place in all blocks, so that what a rank puts together is never where another block's
  // input is staged. In the last block it may be shorter, or empty.
  Slice slice(DataType type, int rank, int size) const {
    const Slice whole = slice_of(whole_count, type, rank, size);
    return {std::min(whole.begin, count), std::min(whole.end, count)};
  }
};

Staged::Staged(int rank, int size, const Staging& staging)
    : rank_(rank),
      size_(size),
      staging_(staging),
      parts_(static_cast<std::size_t>(size)),
      sources_(static_cast<std::size_t>(size)) {}

// While one block is put together, the next one is staged already.
void Staged::run(const Collective& collective, const Shape& shape, int half, bool streams, Steps& steps) {
  if (shape.count == 0) return;
  streams_ = streams;
  const bool is_shared_work = collective.kind == CollectiveKind::all_reduce;
  Block block = block_at(shape, 0, half);
  stage(collective, shape, block);
  steps.meet();
  for (std::size_t end = block.count;;) {
    combine(collective, shape, block);
    const Block next = block_at(shape, end, 1 - block.half);
    if (next.count > 0) stage(collective, shape, next);
    if (next.count > 0 || is_shared_work) steps.meet();
    if (is_shared_work && streams) {
      take_slices(collective, shape, block);
    } else if (is_shared_work) {
      copy_bytes(output_of(collective) + block.begin_bytes, staging_.half(rank_, block.half), block.bytes);
    }
    if (next.count == 0) {
      if (is_shared_work && streams) steps.meet();  // till the others have taken what this rank has put together
      return;
    }
    end += next.count;
    block = next;
  }
}

Staged::Block Staged::block_at(const Shape& shape, std::size_t begin, int half) const {
  const std::size_t element_bytes = size_of(shape.type);
  const std::size_t lines = staging_.half_bytes() / shape.shares / kCacheLineBytes;
  const std::size_t line_count = kCacheLineBytes / element_bytes;
  const std::size_t fitting_count = lines * line_count;
  const std::size_t blocks = (shape.count + fitting_count - 1) / fitting_count;
  const std::size_t even_count = (shape.count + blocks - 1) / blocks;
  Block block;
  block.whole_count = std::min(fitting_count, (even_count + line_count - 1) / line_count * line_count);
  block.count = std::min(block.whole_count, shape.count - begin);
  block.begin_bytes = begin * element_bytes;
  block.bytes = block.count * element_bytes;
  block.stride_bytes = lines * kCacheLineBytes;
  block.half = half;
  return block;
}

void Staged::put(std::byte* to, const std::byte* from, std::size_t bytes) const {
  if (streams_) return tensor::stream_copy(to, from, bytes);
  copy_bytes(to, from, bytes);
}

// This rank's input -> its staging.
void Staged::stage(const Collective& collective, const Shape& shape, const Block& block) {
  if (!shape.gives) return;
  if (streams_ && collective.kind == CollectiveKind::all_reduce) return stage_for_others(collective, shape, block);
  std::byte* const own = staging_.half(rank_, block.half);
  const std::byte* const from = input_of(collective) + block.begin_bytes;
  for (std::size_t share = 0; share < shape.shares; ++share)
    put(own + share * block.stride_bytes, from + share * shape.share_bytes(), block.bytes);
}

void Staged::stage_for_others(const Collective& collective, const Shape& shape, const Block& block) {
  const std::size_t element_bytes = size_of(shape.type);
  const Slice own = block.slice(shape.type, rank_, size_);
  const std::size_t behind = own.end * element_bytes;
  std::byte* const to = staging_.half(rank_, block.half);
  const std::byte* const from = input_of(collective) + block.begin_bytes;
  put(to, from, own.begin * element_bytes);
  put(to + behind, from + behind, block.bytes - behind);
}

// Everybody's staging -> this rank's output; of an all_reduce a slice of it.
void Staged::combine(const Collective& collective, const Shape& shape, const Block& block) {
  if (shape.source_count == 0) return;
  for (int r = 0; r < size_; ++r)
    parts_[static_cast<std::size_t>(r)] = staging_.half(r, block.half) + shape.taken_share * block.stride_bytes;
  std::copy(parts_.begin(), parts_.end(), sources_.begin());
  if (collective.kind == CollectiveKind::all_reduce) {
    if (streams_) return reduce_own_slice(collective, shape, block);
    const Slice own = block.slice(shape.type, rank_, size_);
    return reduce({shape.type, collective.op, sources_.size()}, sources_, parts_, own);
  }
  std::byte* const to = output_of(collective) + block.begin_bytes;
  if (shape.reduces) return reduce({shape.type, collective.op, sources_.size()}, sources_, {&to, 1}, {0, block.count});
  for (int i = 0; i < shape.source_count; ++i) {
    copy_bytes(to + static_cast<std::size_t>(i) * shape.share_bytes(),
               sources_[static_cast<std::size_t>(shape.first_source + i)], block.bytes);
  }
}

void Staged::reduce_own_slice(const Collective& collective, const Shape& shape, const Block& block) {
  const std::size_t element_bytes = size_of(shape.type);
  const std::size_t chunk_count = kChunkBytes / element_bytes;
  const Slice own = block.slice(shape.type, rank_, size_);
  std::byte* const to = output_of(collective) + block.begin_bytes;
  std::byte* const staged = staging_.half(rank_, block.half);
  sources_[static_cast<std::size_t>(rank_)] = input_of(collective) + block.begin_bytes;
  for (std::size_t begin = own.begin; begin < own.end; begin += chunk_count) {
    const std::size_t end = std::min(own.end, begin + chunk_count);
    reduce({shape.type, collective.op, sources_.size()}, sources_, {&to, 1}, {begin, end});
    put(staged + begin * element_bytes, to + begin * element_bytes, (end - begin) * element_bytes);
  }
}

// What the others have put together -> this rank's output.
void Staged::take_slices(const Collective& collective, const Shape& shape, const Block& block) const {
  const std::size_t element_bytes = size_of(shape.type);
  std::byte* const to = output_of(collective) + block.begin_bytes;
  for (int i = 1; i < size_; ++i) {
    const int rank = (rank_ + i) % size_;
    const Slice slice = block.slice(shape.type, rank, size_);
    const std::size_t begin = slice.begin * element_bytes;
    copy_bytes(to + begin, staging_.half(rank, block.half) + begin, slice.end * element_bytes - begin);
  }
}

}  // namespace ddp::cpu_backend
