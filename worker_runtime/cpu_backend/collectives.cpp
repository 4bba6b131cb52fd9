#include "worker_runtime/cpu_backend/collectives.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "worker_runtime/cpu_backend/reduce.hpp"

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kStagingBytes = 1u << 20;  // larger blocks leave the core's cache, smaller ones meet more often

// Elements of one rank: what it gives to an all_gather, gets from a reduce_scatter, and all of it otherwise.
std::size_t count_per_rank(const Collective& collective) {
  return collective.kind == CollectiveKind::all_gather ? collective.input.count : collective.output.count;
}

const std::byte* input_of(const Collective& collective) { return static_cast<const std::byte*>(collective.input.data); }
std::byte* output_of(const Collective& collective) { return static_cast<std::byte*>(collective.output.data); }

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from) std::memcpy(to, from, bytes);
}

}  // namespace

// A piece of each rank's elements, small enough for the staging segment.
struct Collectives::Block {
  std::size_t begin = 0;  // of the elements of one rank
  std::size_t count = 0;
  std::size_t begin_bytes = 0;
  std::size_t bytes = 0;
  std::size_t rank_bytes = 0;    // from the elements of one rank to those of the next, in the user's memory
  std::size_t stride_bytes = 0;  // the same in a rank's staging part, where a reduce_scatter stages for all ranks
};

std::size_t staging_bytes(int size) {
  return std::max(kStagingBytes, static_cast<std::size_t>(size) * kCacheLineBytes);  // a line for each rank at least
}

Collectives::Collectives(int rank, int size, std::shared_ptr<Segment> staging)
    : rank_(rank), size_(size), staging_(std::move(staging)) {
  for (int r = 0; r < size; ++r) staged_.push_back(staging_->part(r));
  parts_.resize(staged_.size());
  sources_.resize(staged_.size());
}

ConstMemoryRange Collectives::memory_for_others(const Collective& collective) {
  if (collective.kind == CollectiveKind::reduce_scatter) return collective.input;
  return collective.output;
}

void Collectives::run_in_place(const Collective& collective, const Placement& placement, const Meet& meet) {
  for (int r = 0; r < size_; ++r) parts_[static_cast<std::size_t>(r)] = placement.in_part_of(r);
  const std::size_t count = count_per_rank(collective);
  const std::size_t bytes = count * size_of(collective.output.type);
  const std::size_t own_offset = static_cast<std::size_t>(rank_) * bytes;
  switch (collective.kind) {
    case CollectiveKind::all_reduce: reduce_own_slice(collective, count); break;
    case CollectiveKind::broadcast:
      copy_bytes(output_of(collective), parts_[static_cast<std::size_t>(collective.root)], bytes);
      break;
    case CollectiveKind::all_gather:
      for (std::byte* part : parts_) copy_bytes(part + own_offset, input_of(collective), bytes);
      break;
    case CollectiveKind::reduce_scatter: reduce_own_part(collective, own_offset, output_of(collective), count); break;
    default: return;  // no data, or not in this backend (cpu_backend.cpp)
  }
  meet();
}

void Collectives::stage_first_block(const Collective& collective) { copy_in(collective, block_at(collective, 0)); }

void Collectives::run_staged(const Collective& collective, const Meet& meet) {
  parts_ = staged_;
  const std::size_t count = count_per_rank(collective);
  for (std::size_t begin = 0; begin < count;) {
    const Block block = block_at(collective, begin);
    if (begin > 0) {
      copy_in(collective, block);
      meet();
    }
    combine(collective, block);
    meet();
    copy_out(collective, block);
    begin += block.count;
  }
}

Collectives::Block Collectives::block_at(const Collective& collective, std::size_t begin) const {
  const std::size_t element_bytes = size_of(collective.output.type);
  const std::size_t shares = collective.kind == CollectiveKind::reduce_scatter ? static_cast<std::size_t>(size_) : 1;
  const std::size_t lines = staging_bytes(size_) / shares / kCacheLineBytes;
  const std::size_t capacity = lines * (kCacheLineBytes / element_bytes);
  Block block;
  block.begin = begin;
  block.count = std::min(capacity, count_per_rank(collective) - begin);
  block.begin_bytes = begin * element_bytes;
  block.bytes = block.count * element_bytes;
  block.rank_bytes = count_per_rank(collective) * element_bytes;
  block.stride_bytes = lines * kCacheLineBytes;
  return block;
}

// This rank's input -> its staging part.
void Collectives::copy_in(const Collective& collective, const Block& block) {
  if (block.count == 0) return;
  std::byte* const own = staged_[static_cast<std::size_t>(rank_)];
  const std::byte* from = input_of(collective) + block.begin_bytes;
  switch (collective.kind) {
    case CollectiveKind::broadcast:
      if (rank_ == collective.root) copy_bytes(own, from, block.bytes);
      break;
    case CollectiveKind::all_reduce:
    case CollectiveKind::all_gather: copy_bytes(own, from, block.bytes); break;
    case CollectiveKind::reduce_scatter:
      for (std::size_t r = 0; r < staged_.size(); ++r) {
        copy_bytes(own + r * block.stride_bytes, from + r * block.rank_bytes, block.bytes);
      }
      break;
    default: break;
  }
}

// Everybody's staging parts -> this rank's output; for an all_reduce one slice of all staging parts.
void Collectives::combine(const Collective& collective, const Block& block) {
  std::byte* const to = output_of(collective) + block.begin_bytes;
  switch (collective.kind) {
    case CollectiveKind::all_reduce: reduce_own_slice(collective, block.count); break;
    case CollectiveKind::broadcast:
      if (rank_ != collective.root) copy_bytes(to, parts_[static_cast<std::size_t>(collective.root)], block.bytes);
      break;
    case CollectiveKind::all_gather:
      for (std::size_t r = 0; r < parts_.size(); ++r) copy_bytes(to + r * block.rank_bytes, parts_[r], block.bytes);
      break;
    case CollectiveKind::reduce_scatter:
      reduce_own_part(collective, static_cast<std::size_t>(rank_) * block.stride_bytes, to, block.count);
      break;
    default: break;
  }
}

void Collectives::copy_out(const Collective& collective, const Block& block) {
  if (collective.kind != CollectiveKind::all_reduce) return;
  copy_bytes(output_of(collective) + block.begin_bytes, staged_[static_cast<std::size_t>(rank_)], block.bytes);
}

// Every rank sums its slice over all parts and stores it to all of them.
void Collectives::reduce_own_slice(const Collective& collective, std::size_t count) {
  std::copy(parts_.begin(), parts_.end(), sources_.begin());
  const DataType type = collective.output.type;
  reduce({type, collective.op, parts_.size()}, sources_, parts_, slice_of(count, type, rank_, size_));
}

void Collectives::reduce_own_part(const Collective& collective, std::size_t offset_bytes, std::byte* output,
                                  std::size_t count) {
  for (std::size_t r = 0; r < parts_.size(); ++r) sources_[r] = parts_[r] + offset_bytes;
  reduce({collective.output.type, collective.op, parts_.size()}, sources_, {&output, 1}, {0, count});
}

}  // namespace ddp::cpu_backend
