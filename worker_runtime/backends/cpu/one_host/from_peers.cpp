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

FromPeers::FromPeers(int rank, int size, const PeerMemory& peers)
    : rank_(rank),
      size_(size),
      peers_(peers),
      inputs_(static_cast<std::size_t>(size)),
      sources_(static_cast<std::size_t>(size)) {}

void FromPeers::run(const Collective& collective, const Shape& shape, Steps& steps) {
  const std::size_t bytes = shape.share_bytes();
  const std::size_t taken = shape.taken_share * bytes;
  if (collective.kind == CollectiveKind::all_reduce) {  // a slice of it, which the others read then
    const auto slice_for = [&](int rank) { return slice_of(shape.count, shape.type, rank, size_); };
    const std::size_t element_bytes = size_of(shape.type);
    reduce_slice(collective, shape, slice_for(rank_), output_of(collective), steps);
    steps.meet();
    for (int i = 1; i < size_; ++i) {
      const int rank = (rank_ + i) % size_;
      const Slice slice = slice_for(rank);
      const std::size_t begin = slice.begin * element_bytes;
      read(rank, begin, output_of(collective) + begin, slice.end * element_bytes - begin, steps);
    }
  } else if (shape.reduces) {
    if (shape.source_count > 0) reduce_slice(collective, shape, {0, shape.count}, output_of(collective), steps);
  } else {
    for (int i = 0; i < shape.source_count; ++i) {
      const int source = shape.source_count == 1 ? shape.first_source : (rank_ + i) % size_;
      const std::size_t place = shape.source_count == 1 ? 0 : static_cast<std::size_t>(source);
      std::byte* const to = output_of(collective) + place * bytes;
      if (source == rank_) {
        copy_bytes(to, input_of(collective) + taken, bytes);
      } else {
        read(source, taken, to, bytes, steps);
      }
    }
  }
  steps.meet();
}

void FromPeers::read(int rank, std::size_t offset_bytes, std::byte* to, std::size_t bytes, Steps& steps) const {
  if (bytes == 0) return;
  if (!peers_.read(rank, inputs_[static_cast<std::size_t>(rank)] + offset_bytes, to, bytes)) steps.lose(rank);
}

// Elements [begin, end) of the share that this rank takes from each -> where they belong in the output.
void FromPeers::reduce_slice(const Collective& collective, const Shape& shape, Slice slice, std::byte* output,
                             Steps& steps) {
  const std::size_t element_bytes = size_of(shape.type);
  const std::size_t others = static_cast<std::size_t>(size_) - 1;
  const std::size_t fitting_bytes = kScratchBytesMax / others / kCacheLineBytes * kCacheLineBytes;
  const std::size_t block_bytes = std::clamp(fitting_bytes, kBlockBytesMin, kBlockBytes);
  if (scratch_.size() < block_bytes * others) scratch_.resize(block_bytes * others);
  const std::size_t block_count = block_bytes / element_bytes;
  const std::size_t taken = shape.taken_share * shape.share_bytes();
  for (std::size_t begin = slice.begin; begin < slice.end; begin += block_count) {
    const std::size_t count = std::min(block_count, slice.end - begin);
    const std::size_t offset = taken + begin * element_bytes;
    std::byte* scratch = scratch_.data();
    for (int rank = 0; rank < size_; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (rank == rank_) {
        sources_[at] = input_of(collective) + offset;
      } else {
        read(rank, offset, scratch, count * element_bytes, steps);
        sources_[at] = scratch;
        scratch += block_bytes;
      }
    }
    std::byte* const to = output + begin * element_bytes;
    reduce({shape.type, collective.op, sources_.size()}, sources_, {&to, 1}, {0, count});
  }
}

}  // namespace ddp::cpu_backend
