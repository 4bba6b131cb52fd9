#include "worker_runtime/backends/cpu/one_host/from_peers.hpp"

#include <algorithm>
#include <cstring>

#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kScratchBytesMax = 1u << 20;  // half of what a core's second cache holds today
constexpr std::size_t kBlockBytes = 1u << 17;       // smaller ones cost more system calls, larger ones leave the caches
constexpr std::size_t kBlockBytesMin = 1u << 14;

}  // namespace

FromPeers::FromPeers(int rank, int size, Arrivals& arrivals, const PeerMemory& peers, const Staging& staging,
                     Staged& staged)
    : rank_(rank),
      size_(size),
      arrivals_(arrivals),
      peers_(peers),
      staging_(staging),
      staged_(staged),
      unread_(static_cast<std::size_t>(size)),
      inputs_(static_cast<std::size_t>(size)),
      sources_(static_cast<std::size_t>(size)) {}

bool FromPeers::run(const Collective& collective, const Shape& shape, Steps& steps) {
  if (!shape.reduces) {
    if (all_have_read(read_shares(collective, shape, steps), steps)) return true;
    staged_.run(collective, shape, arrivals_.next_half(), false, steps);  // no input has changed: all of it once more
    return false;
  }
  bool all_read = all_have_read(reduce_part(collective, shape, steps), steps);
  if (!all_read) stage_parts(collective, shape, steps);
  if (collective.kind != CollectiveKind::all_reduce) return all_read;
  all_read = all_read && all_have_read(read_slices(collective, shape, steps), steps);
  if (!all_read) stage_slices(collective, shape, steps);
  return all_read;
}

bool FromPeers::all_have_read(std::size_t unread, Steps& steps) {
  const std::uint64_t own = unread;
  arrivals_.posts().put_data(&own, sizeof own);
  steps.meet();
  for (int rank = 0; rank < size_; ++rank)
    arrivals_.posts().get_data(rank, &unread_[static_cast<std::size_t>(rank)], sizeof own);
  return std::all_of(unread_.begin(), unread_.end(), [](std::uint64_t count) { return count == 0; });
}

bool FromPeers::read(int rank, std::size_t offset_bytes, std::byte* to, std::size_t bytes, Steps& steps) const {
  if (bytes == 0) return true;
  const auto result = peers_.read(rank, inputs_[static_cast<std::size_t>(rank)] + offset_bytes, to, bytes);
  if (result == PeerMemory::Read::gone) steps.lose(rank);
  return result == PeerMemory::Read::complete;
}

std::size_t FromPeers::read_shares(const Collective& collective, const Shape& shape, Steps& steps) const {
  const std::size_t bytes = shape.share_bytes();
  const std::size_t taken = shape.taken_share * bytes;
  for (int i = 0; i < shape.source_count; ++i) {
    const int source = shape.source_count == 1 ? shape.first_source : (rank_ + i) % size_;
    const std::size_t place = shape.source_count == 1 ? 0 : static_cast<std::size_t>(source);
    std::byte* const to = output_of(collective) + place * bytes;
    if (source == rank_) {
      copy_bytes(to, input_of(collective) + taken, bytes);
    } else if (!read(source, taken, to, bytes, steps)) {
      return 1;
    }
  }
  return 0;
}

// The slices of an all_reduce that the other ranks have reduced.
std::size_t FromPeers::read_slices(const Collective& collective, const Shape& shape, Steps& steps) const {
  const std::size_t element_bytes = size_of(shape.type);
  for (int i = 1; i < size_; ++i) {
    const int rank = (rank_ + i) % size_;
    const Slice slice = part_of(collective, shape, rank);
    const std::size_t begin = slice.begin * element_bytes;
    if (!read(rank, begin, output_of(collective) + begin, slice.end * element_bytes - begin, steps)) return 1;
  }
  return 0;
}

Slice FromPeers::part_of(const Collective& collective, const Shape& shape, int rank) const {
  const auto at = static_cast<std::size_t>(rank);
  switch (collective.kind) {
    case CollectiveKind::all_reduce: return slice_of(shape.count, shape.type, rank, size_);
    case CollectiveKind::reduce_scatter: return {at * shape.count, (at + 1) * shape.count};
    default: return {0, rank == collective.root ? shape.count : 0};  // reduce
  }
}

std::size_t FromPeers::reduce_part(const Collective& collective, const Shape& shape, Steps& steps) {
  const std::size_t element_bytes = size_of(shape.type);
  const std::size_t others = static_cast<std::size_t>(size_) - 1;
  const std::size_t fitting_bytes = kScratchBytesMax / others / kCacheLineBytes * kCacheLineBytes;
  const std::size_t block_bytes = std::clamp(fitting_bytes, kBlockBytesMin, kBlockBytes);
  if (scratch_.size() < block_bytes * others) scratch_.resize(block_bytes * others);
  const std::size_t block_count = block_bytes / element_bytes;
  const Slice part = part_of(collective, shape, rank_);
  for (std::size_t begin = part.begin; begin < part.end; begin += block_count) {
    const std::size_t count = std::min(block_count, part.end - begin);
    std::byte* scratch = scratch_.data();
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      // Not one byte of the block's output is written yet, which may be this rank's input too.
      if (!read(rank, begin * element_bytes, scratch, count * element_bytes, steps)) return part.end - begin;
      sources_[static_cast<std::size_t>(rank)] = scratch;
      scratch += block_bytes;
    }
    reduce_sources(collective, shape, begin, count);
  }
  return 0;
}

// sources_ of the others, and this rank's own input -> elements [begin, begin + count), part of this rank's part.
void FromPeers::reduce_sources(const Collective& collective, const Shape& shape, std::size_t begin, std::size_t count) {
  const std::size_t element_bytes = size_of(shape.type);
  const std::size_t first = collective.kind == CollectiveKind::all_reduce ? 0 : part_of(collective, shape, rank_).begin;
  std::byte* const to = output_of(collective) + (begin - first) * element_bytes;
  sources_[static_cast<std::size_t>(rank_)] = input_of(collective) + begin * element_bytes;
  reduce({shape.type, collective.op, sources_.size()}, sources_, {&to, 1}, {0, count});
}

void FromPeers::stage_parts(const Collective& collective, const Shape& shape, Steps& steps) {
  const std::size_t element_bytes = size_of(shape.type);
  const std::size_t chunk_count = staging_.half_bytes() / element_bytes;
  for (int to = 0; to < size_; ++to) {
    const Slice part = part_of(collective, shape, to);
    for (std::size_t begin = part.end - unread_[static_cast<std::size_t>(to)]; begin < part.end; begin += chunk_count) {
      const std::size_t count = std::min(chunk_count, part.end - begin);
      if (to != rank_) {
        copy_bytes(staging_.half(rank_, arrivals_.next_half()), input_of(collective) + begin * element_bytes,
                   count * element_bytes);
      }
      steps.meet();
      if (to != rank_) continue;
      for (int rank = 0; rank < size_; ++rank)
        sources_[static_cast<std::size_t>(rank)] = staging_.half(rank, arrivals_.present_half());
      reduce_sources(collective, shape, begin, count);
    }
  }
}

void FromPeers::stage_slices(const Collective& collective, const Shape& shape, Steps& steps) {
  const std::size_t element_bytes = size_of(shape.type);
  const std::size_t chunk_bytes = staging_.half_bytes();
  std::byte* const output = output_of(collective);
  const auto chunk_of = [&](int rank, std::size_t offset) {  // in bytes
    const Slice slice = part_of(collective, shape, rank);
    const std::size_t end = slice.end * element_bytes;
    const std::size_t begin = std::min(end, slice.begin * element_bytes + offset);
    return Slice{begin, std::min(end, begin + chunk_bytes)};
  };
  std::size_t longest = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const Slice slice = part_of(collective, shape, rank);
    longest = std::max(longest, (slice.end - slice.begin) * element_bytes);
  }
  for (std::size_t offset = 0; offset < longest; offset += chunk_bytes) {
    const Slice own = chunk_of(rank_, offset);
    copy_bytes(staging_.half(rank_, arrivals_.next_half()), output + own.begin, own.end - own.begin);
    steps.meet();
    for (int rank = 0; rank < size_; ++rank) {
      const Slice chunk = chunk_of(rank, offset);
      if (rank == rank_) continue;
      copy_bytes(output + chunk.begin, staging_.half(rank, arrivals_.present_half()), chunk.end - chunk.begin);
    }
  }
}

}  // namespace ddp::cpu_backend
