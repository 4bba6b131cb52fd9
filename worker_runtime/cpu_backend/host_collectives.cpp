#include "worker_runtime/cpu_backend/host_collectives.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "worker_runtime/cpu_backend/reduce.hpp"

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kBlockBytes = 1u << 20;

// Elements of one rank: what it gives to an all_gather, gets from a reduce_scatter, and all of it otherwise.
std::size_t count_per_rank(const Collective& collective) {
  return collective.kind == CollectiveKind::all_gather ? collective.input.count : collective.output.count;
}

// What the elements of a collective are while they are exchanged.
DataType exchanged_type(const Collective& collective) {
  const DataType type = collective.output.type;
  return process_group::has_op(collective.kind) ? accumulator_of(type) : type;
}

std::size_t block_bytes(int size) {
  return std::max(kBlockBytes, static_cast<std::size_t>(size) * kCacheLineBytes);  // a line for each rank at least
}

const std::byte* input_of(const Collective& collective) { return static_cast<const std::byte*>(collective.input.data); }
std::byte* output_of(const Collective& collective) { return static_cast<std::byte*>(collective.output.data); }

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

// A piece of each rank's elements. An all_gather or reduce_scatter has a slot for each rank in the area, by its place.
// What is reduced is there as accumulators until the hosts have put it together.
struct HostCollectives::Block {
  std::size_t count = 0;  // of the elements of one rank
  std::size_t bytes = 0;
  std::size_t begin_bytes = 0;
  std::size_t rank_bytes = 0;  // from the elements of one rank to those of the next, in the user's memory
  std::size_t slot_bytes = 0;  // from one slot to the next; all of the block where there is one
};

std::size_t HostCollectives::staging_bytes(int size) { return 2 * block_bytes(size); }  // what is staged, and the area

HostCollectives::HostCollectives(HostLayout layout, int rank, std::shared_ptr<Segment> staging)
    : layout_(std::move(layout)),
      rank_(rank),
      host_(layout_.host_of(rank)),
      index_(layout_.index_of(rank)),
      here_count_(static_cast<int>(layout_.ranks_of(host_).size())),
      staging_(std::move(staging)),
      area_(staging_->part(0) + block_bytes(layout_.size())),
      parcels_(host_count()) {
  staging_->keep_own_part();  // a leader can be done with its last collective before the others have taken theirs
}

void HostCollectives::run(const Collective& collective, const Placement* placement, const Steps& steps) {
  const std::size_t count = count_per_rank(collective);
  for (std::size_t begin = 0; begin < count;) {
    const Block block = block_at(collective, begin);
    if (placement == nullptr) stage(collective, block);
    steps.meet();  // all is staged, and all have taken what the block before left in the area
    combine(collective, block, placement);
    steps.meet();
    if (is_leader()) exchange(collective, block, steps);
    steps.meet_after_leaders();
    take(collective, block);
    begin += block.count;
  }
}

HostCollectives::Block HostCollectives::block_at(const Collective& collective, std::size_t begin) const {
  const std::size_t element_bytes = size_of(collective.output.type);
  const bool has_slots =
      collective.kind == CollectiveKind::all_gather || collective.kind == CollectiveKind::reduce_scatter;
  const std::size_t slots = has_slots ? static_cast<std::size_t>(layout_.size()) : 1;
  const std::size_t exchanged_bytes = size_of(exchanged_type(collective));
  const std::size_t capacity =
      block_bytes(layout_.size()) / slots / kCacheLineBytes * (kCacheLineBytes / exchanged_bytes);
  Block block;
  block.count = std::min(capacity, count_per_rank(collective) - begin);
  block.bytes = block.count * element_bytes;
  block.begin_bytes = begin * element_bytes;
  block.rank_bytes = count_per_rank(collective) * element_bytes;
  block.slot_bytes = block.count * exchanged_bytes;
  return block;
}

// Of what is summed: this rank's input -> its staging part. The rest goes to the area without a stop.
void HostCollectives::stage(const Collective& collective, const Block& block) {
  std::byte* const own = staging_->part(index_);
  const std::byte* const from = input_of(collective) + block.begin_bytes;
  if (collective.kind == CollectiveKind::all_reduce) copy_bytes(own, from, block.bytes);
  if (collective.kind != CollectiveKind::reduce_scatter) return;
  for (int rank = 0; rank < layout_.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    copy_bytes(own + at * block.slot_bytes, from + at * block.rank_bytes, block.bytes);
  }
}

// What the ranks of this host have -> the area: put together, each rank a share of it, or their slots.
void HostCollectives::combine(const Collective& collective, const Block& block, const Placement* placement) {
  const DataType type = collective.output.type;
  const Reduction of_host{type, collective.op, 1, Stage::partial};
  const auto sources_at = [&](std::size_t staged_bytes, std::size_t placed_bytes) {
    sources_.clear();
    for (int index = 0; index < here_count_; ++index) {
      sources_.push_back(placement == nullptr ? staging_->part(index) + staged_bytes
                                              : placement->in_part_of(index) + placed_bytes);
    }
  };
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      sources_at(0, block.begin_bytes);
      reduce(of_host, sources_, {&area_, 1}, slice_of(block.count, type, index_, here_count_));
      break;
    case CollectiveKind::reduce_scatter:
      for (std::size_t place = static_cast<std::size_t>(index_); place < static_cast<std::size_t>(layout_.size());
           place += static_cast<std::size_t>(here_count_)) {
        const auto rank = static_cast<std::size_t>(layout_.rank_at(place));
        std::byte* const slot = area_ + place * block.slot_bytes;
        sources_at(rank * block.slot_bytes, rank * block.rank_bytes + block.begin_bytes);
        reduce(of_host, sources_, {&slot, 1}, {0, block.count});
      }
      break;
    case CollectiveKind::all_gather:
      copy_bytes(area_ + layout_.place_of(rank_) * block.slot_bytes, input_of(collective) + block.begin_bytes,
                 block.bytes);
      break;
    case CollectiveKind::broadcast:
      if (rank_ == collective.root) copy_bytes(area_, input_of(collective) + block.begin_bytes, block.bytes);
      break;
    default: break;  // no data, or not in this backend (cpu_backend.cpp)
  }
}

std::byte* HostCollectives::slots_of(int host, const Block& block) const {
  return area_ + layout_.first_place(host) * block.slot_bytes;
}

std::size_t HostCollectives::slot_bytes(int host, const Block& block) const {
  return layout_.ranks_of(host).size() * block.slot_bytes;
}

// Among the leaders: the area of each host -> what its ranks take.
void HostCollectives::exchange(const Collective& collective, const Block& block, const Steps& steps) {
  switch (collective.kind) {
    case CollectiveKind::all_reduce: return all_reduce(collective, block, steps);
    case CollectiveKind::reduce_scatter: return reduce_scatter(collective, block, steps);
    case CollectiveKind::all_gather:
      for (int host = 0; host < layout_.host_count(); ++host) {
        parcels_[static_cast<std::size_t>(host)] = {{slots_of(host_, block), slot_bytes(host_, block)},
                                                    {slots_of(host, block), slot_bytes(host, block)}};
      }
      return steps.transfer(parcels_);
    case CollectiveKind::broadcast: {
      const int source = layout_.host_of(collective.root);
      std::fill(parcels_.begin(), parcels_.end(), HostStreams::Parcel{});
      for (int host = 0; host < layout_.host_count(); ++host) {
        if (source == host_) parcels_[static_cast<std::size_t>(host)].out = {area_, block.bytes};
        if (source == host) parcels_[static_cast<std::size_t>(host)].in = {area_, block.bytes};
      }
      return steps.transfer(parcels_);
    }
    default: return;
  }
}

// Each leader puts a slice together over the hosts and sends it to all others. What comes of it takes the place of the
// accumulators, which are all sent by then.
void HostCollectives::all_reduce(const Collective& collective, const Block& block, const Steps& steps) {
  const DataType type = collective.output.type;
  const auto slice_for = [&](int host, DataType of) {
    const Slice slice = slice_of(block.count, type, host, layout_.host_count());
    return std::span<std::byte>(area_ + slice.begin * size_of(of), (slice.end - slice.begin) * size_of(of));
  };
  const DataType exchanged = exchanged_type(collective);
  const std::span<std::byte> own = slice_for(host_, exchanged);
  if (scratch_.size() < own.size() * host_count()) scratch_.resize(own.size() * host_count());
  sources_.assign(host_count(), own.data());
  for (int host = 0; host < layout_.host_count(); ++host) {
    const auto at = static_cast<std::size_t>(host);
    std::byte* const from_there = scratch_.data() + at * own.size();
    parcels_[at] = {slice_for(host, exchanged), {from_there, own.size()}};
    if (host != host_) sources_[at] = from_there;
  }
  steps.transfer(parcels_);
  const std::span<std::byte> result = slice_for(host_, type);
  std::byte* const destination = result.data();
  reduce({type, collective.op, static_cast<std::size_t>(layout_.size()), Stage::total}, sources_, {&destination, 1},
         {0, own.size() / size_of(exchanged)});
  for (int host = 0; host < layout_.host_count(); ++host) {
    parcels_[static_cast<std::size_t>(host)] = {result, slice_for(host, type)};
  }
  steps.transfer(parcels_);
}

// Each leader puts the slots of its ranks together over the hosts. The results lie at the start of these slots, side by
// side.
void HostCollectives::reduce_scatter(const Collective& collective, const Block& block, const Steps& steps) {
  const std::span<std::byte> own(slots_of(host_, block), slot_bytes(host_, block));
  if (scratch_.size() < own.size() * host_count()) scratch_.resize(own.size() * host_count());
  sources_.assign(host_count(), own.data());
  for (int host = 0; host < layout_.host_count(); ++host) {
    const auto at = static_cast<std::size_t>(host);
    std::byte* const from_there = scratch_.data() + at * own.size();
    parcels_[at] = {{slots_of(host, block), slot_bytes(host, block)}, {from_there, own.size()}};
    if (host != host_) sources_[at] = from_there;
  }
  steps.transfer(parcels_);
  std::byte* const result = own.data();
  reduce({collective.output.type, collective.op, static_cast<std::size_t>(layout_.size()), Stage::total}, sources_,
         {&result, 1}, {0, own.size() / size_of(exchanged_type(collective))});
}

// The area -> this rank's output.
void HostCollectives::take(const Collective& collective, const Block& block) const {
  std::byte* const to = output_of(collective) + block.begin_bytes;
  switch (collective.kind) {
    case CollectiveKind::all_reduce: copy_bytes(to, area_, block.bytes); break;
    case CollectiveKind::broadcast:
      if (rank_ != collective.root) copy_bytes(to, area_, block.bytes);
      break;
    case CollectiveKind::all_gather:
      for (int rank = 0; rank < layout_.size(); ++rank) {
        copy_bytes(to + static_cast<std::size_t>(rank) * block.rank_bytes,
                   area_ + layout_.place_of(rank) * block.slot_bytes, block.bytes);
      }
      break;
    case CollectiveKind::reduce_scatter:
      copy_bytes(to, slots_of(host_, block) + static_cast<std::size_t>(index_) * block.bytes, block.bytes);
      break;
    default: break;
  }
}

}  // namespace ddp::cpu_backend
