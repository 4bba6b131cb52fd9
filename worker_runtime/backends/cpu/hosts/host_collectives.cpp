#include "worker_runtime/backends/cpu/hosts/host_collectives.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "worker_runtime/backends/cpu/hosts/collective_shape.hpp"
#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kBlockBytes = 1u << 20;

std::size_t ranks_of_largest_host(const HostLayout& layout) {
  std::size_t most = 0;
  for (int host = 0; host < layout.host_count(); ++host) most = std::max(most, layout.ranks_of(host).size());
  return most;
}

std::size_t block_bytes(const HostLayout& layout) {
  const std::size_t slots_max = static_cast<std::size_t>(layout.size()) * ranks_of_largest_host(layout);
  return std::max({kBlockBytes, slots_max * kCacheLineBytes, GatheredCollectives::area_bytes(layout)});
}

// Pieces of equal size that a block has: one, or one for each rank, or for each pair of a rank and one of this host.
std::size_t slots_of(CollectiveKind kind, const HostLayout& layout) {
  const auto size = static_cast<std::size_t>(layout.size());
  switch (kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::gather:
    case CollectiveKind::scatter: return size;
    case CollectiveKind::all_to_all: return size * ranks_of_largest_host(layout);
    default: return 1;
  }
}

bool is_summed_over_hosts(CollectiveKind kind) {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce;
}

}  // namespace

// A piece of each rank's elements. Where ranks have different ones there is a slot for each in the area, by its place.
// What is reduced is there as accumulators.
struct HostCollectives::Block {
  std::size_t number = 0;
  std::size_t begin = 0, count = 0;  // of the elements of one rank
  std::size_t bytes = 0;
  std::size_t begin_bytes = 0;
  std::size_t rank_bytes = 0;  // from the elements of one rank to those of the next, in the user's memory
  std::size_t slot_bytes = 0;  // from one slot to the next; all of the block where there is one
};

// What the leader says of a call to the ranks of its host; the calls of all ranks stand behind it where they differ.
struct HostCollectives::Verdict {
  std::uint64_t is_same = 0;
  FingerprintWords* calls() { return reinterpret_cast<FingerprintWords*>(this + 1); }  // by rank
};

// What is staged, two areas, so that a block is combined in one while the other is exchanged, and the verdict.
std::size_t HostCollectives::staging_bytes(const HostLayout& layout) {
  return 3 * block_bytes(layout) + sizeof(Verdict) + static_cast<std::size_t>(layout.size()) * sizeof(FingerprintWords);
}

// The areas and the verdict are in the leader's part alone.
Gap HostCollectives::unused_by(const HostLayout& layout, int rank) {
  if (layout.index_of(rank) == 0) return {};
  return {block_bytes(layout), staging_bytes(layout)};
}

HostCollectives::HostCollectives(HostLayout layout, int rank, std::shared_ptr<Segment> staging)
    : layout_(std::move(layout)),
      rank_(rank),
      host_(layout_.host_of(rank)),
      index_(layout_.index_of(rank)),
      here_count_(static_cast<int>(layout_.ranks_of(host_).size())),
      staging_(std::move(staging)),
      gathered_(layout_, rank, staging_, staging_->part(0) + block_bytes(layout_)),
      opening_(layout_, host_),
      parcels_(host_count()) {
  staging_->keep_own_part();  // a leader can be done with its last collective before the others have taken theirs
}

HostCollectives::Verdict& HostCollectives::verdict() const {
  return *reinterpret_cast<Verdict*>(staging_->part(0) + 3 * block_bytes(layout_));
}

std::byte* HostCollectives::area(const Block& block) const {
  return staging_->part(0) + (1 + block.number % 2) * block_bytes(layout_);
}

// Where nothing is staged there is room for it.
std::byte* HostCollectives::received_area(const Block& block) const {
  return staging_->part(here_count_ == 1 ? 0 : static_cast<int>(block.number % 2));
}

void HostCollectives::stage(const Collective& collective) {
  if (gathered_.takes(collective)) gathered_.stage(collective);
}

bool HostCollectives::open(const Collective* collective, const std::vector<Fingerprint>& calls, const Steps& steps) {
  if (is_leader()) {
    const Collective* const with_data = collective != nullptr && gathered_.takes(*collective) ? collective : nullptr;
    const auto is_first = [&](const Fingerprint& call) { return same_call(call, calls.front()); };
    const bool is_same_here = std::all_of(calls.begin(), calls.end(), is_first);
    const auto own =
        with_data != nullptr && is_same_here ? gathered_.put_together(*with_data) : std::span<const std::byte>();
    const auto bytes_of = [this, with_data](int host) {
      return with_data == nullptr ? 0 : gathered_.bytes_of(*with_data, host);
    };
    steps.exchange([&](HostStreams& streams, const HostStreams::Wait& wait) {
      return opening_.run(streams, calls, own, bytes_of, wait);
    });
    verdict().is_same = opening_.is_same_everywhere() ? 1 : 0;
    if (!opening_.is_same_everywhere()) {
      for (int rank = 0; rank < layout_.size(); ++rank) verdict().calls()[rank] = encode(opening_.call_of(rank));
    } else if (with_data != nullptr) {
      gathered_.hand_out(*with_data, opening_);
    }
  }
  if (here_count_ > 1) steps.meet_after_leaders();
  return verdict().is_same != 0;
}

Fingerprint HostCollectives::call_of(int rank) const { return core::decode(verdict().calls()[rank]); }

void HostCollectives::finish(const Collective& collective, const Placement* placement, const Steps& steps) {
  if (gathered_.takes(collective)) return gathered_.finish(collective);
  const DataType type = type_of(collective);
  const bool has_one_rank_each = layout_.size() == layout_.host_count();
  if (has_one_rank_each && collective.kind == CollectiveKind::broadcast) {
    return broadcast({output_of(collective), collective.output.bytes()}, collective.root, steps);
  }
  if (has_one_rank_each && !process_group::has_op(collective.kind)) return move_in_users_memory(collective, steps);
  const bool goes_round_in_users_memory =
      has_one_rank_each && collective.kind == CollectiveKind::all_reduce && type == exchanged_type(collective);
  if (!goes_round_in_users_memory) return run_blocks(collective, placement, steps);
  steps.exchange([&](HostStreams& streams, const HostStreams::Wait& wait) {
    return ring_.all_reduce(streams, {output_of(collective), collective.output.bytes()}, type, collective.op, size(),
                            wait);
  });
}

void HostCollectives::broadcast(std::span<std::byte> bytes, int root, const Steps& steps) {
  steps.exchange([&](HostStreams& streams, const HostStreams::Wait& wait) {
    return HostRing::broadcast(streams, bytes, layout_.host_of(root), wait);
  });
}

// What is not summed, where every host has one rank, which has its host's number.
void HostCollectives::move_in_users_memory(const Collective& collective, const Steps& steps) {
  const std::size_t bytes = count_per_rank(collective, layout_.size()) * size_of(type_of(collective));
  const bool is_root = rank_ == collective.root;
  const bool gives_parts = collective.kind == CollectiveKind::scatter || collective.kind == CollectiveKind::all_to_all;
  const bool takes_parts = collective.kind != CollectiveKind::scatter;
  for (int rank = 0; rank < layout_.size(); ++rank) {
    const bool has_root = process_group::has_root(collective.kind);
    const bool gives = !has_root || (is_of_input(collective.kind) ? rank == collective.root : is_root);
    const bool takes = !has_root || (is_of_input(collective.kind) ? is_root : rank == collective.root);
    const std::size_t at = static_cast<std::size_t>(rank) * bytes;
    HostStreams::Parcel& parcel = parcels_[static_cast<std::size_t>(rank)];
    parcel = {};
    if (gives) parcel.out = {input_of(collective) + (gives_parts ? at : 0), bytes};
    if (takes) parcel.in = {output_of(collective) + (takes_parts ? at : 0), bytes};
    if (rank == rank_ && gives && takes) copy_bytes(parcel.in.data(), parcel.out.data(), bytes);
  }
  steps.exchange([&](HostStreams& streams, const HostStreams::Wait& wait) { return streams.transfer(parcels_, wait); });
}

void HostCollectives::run_blocks(const Collective& collective, const Placement* placement, const Steps& steps) {
  const std::size_t count = count_per_rank(collective, layout_.size());
  std::optional<Block> before;  // combined on all hosts, and not exchanged yet
  for (std::size_t number = 0, begin = 0; begin < count || before; ++number) {
    std::optional<Block> block;
    if (begin < count) block = block_at(collective, number, begin);
    if (block) {
      if (placement == nullptr) stage_block(collective, *block);
      steps.meet();  // all is staged, and all have taken what the block before the last left in this area
      combine(collective, *block, placement);
      begin += block->count;
    }
    if (before && is_leader()) exchange(collective, *before, steps);
    before ? steps.meet_after_leaders() : steps.meet();
    if (before) take(collective, *before);
    before = block;
  }
  if (collective.kind == CollectiveKind::all_to_all) steps.meet();  // the next call may stage where it was received
}

HostCollectives::Block HostCollectives::block_at(const Collective& collective, std::size_t number,
                                                 std::size_t begin) const {
  const std::size_t element_bytes = size_of(type_of(collective));
  const std::size_t exchanged_bytes = size_of(exchanged_type(collective));
  const std::size_t slots = cpu_backend::slots_of(collective.kind, layout_);
  const std::size_t capacity = block_bytes(layout_) / slots / kCacheLineBytes * (kCacheLineBytes / exchanged_bytes);
  const std::size_t count = count_per_rank(collective, layout_.size());
  Block block;
  block.number = number;
  block.begin = begin;
  block.count = std::min(capacity, count - begin);
  block.bytes = block.count * element_bytes;
  block.begin_bytes = begin * element_bytes;
  block.rank_bytes = count * element_bytes;
  block.slot_bytes = block.count * exchanged_bytes;
  return block;
}

// Of what is summed: this rank's input -> its staging part. The rest goes to the area without a stop.
void HostCollectives::stage_block(const Collective& collective, const Block& block) {
  const bool is_summed = is_summed_over_hosts(collective.kind);
  if (!is_summed && collective.kind != CollectiveKind::reduce_scatter) return;  // the input may be null
  std::byte* const own = staging_->part(index_);
  const std::byte* const from = input_of(collective) + block.begin_bytes;
  if (is_summed) copy_bytes(own, from, block.bytes);
  if (collective.kind != CollectiveKind::reduce_scatter) return;
  for (std::size_t rank = 0; rank < size(); ++rank) {
    copy_bytes(own + rank * block.slot_bytes, from + rank * block.rank_bytes, block.bytes);
  }
}

// What the ranks of this host have -> the area. Sums are formed by all ranks but the leader, who is busy with the block
// before.
void HostCollectives::combine(const Collective& collective, const Block& block, const Placement* placement) {
  const DataType type = type_of(collective);
  const Reduction of_host{type, collective.op, 1, Stage::partial};
  const int workers = std::max(here_count_ - 1, 1);
  const int worker = here_count_ == 1 ? 0 : index_ - 1;
  std::byte* const to = area(block);
  const auto from = [&] { return input_of(collective) + block.begin_bytes; };  // of ranks that have an input
  const auto sources_at = [&](std::size_t staged_bytes, std::size_t placed_bytes) {
    sources_.clear();
    for (int index = 0; index < here_count_; ++index) {
      sources_.push_back(placement == nullptr ? staging_->part(index) + staged_bytes
                                              : placement->in_part_of(index) + placed_bytes);
    }
  };
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::reduce:
      if (worker < 0) return;
      sources_at(0, block.begin_bytes);
      return reduce(of_host, sources_, {&to, 1}, slice_of(block.count, type, worker, workers));
    case CollectiveKind::reduce_scatter:
      if (worker < 0) return;
      for (auto place = static_cast<std::size_t>(worker); place < size(); place += static_cast<std::size_t>(workers)) {
        const auto rank = static_cast<std::size_t>(layout_.rank_at(place));
        std::byte* const slot = to + place * block.slot_bytes;
        sources_at(rank * block.slot_bytes, rank * block.rank_bytes + block.begin_bytes);
        reduce(of_host, sources_, {&slot, 1}, {0, block.count});
      }
      return;
    case CollectiveKind::all_gather:
    case CollectiveKind::gather:
      return copy_bytes(to + layout_.place_of(rank_) * block.slot_bytes, from(), block.bytes);
    case CollectiveKind::broadcast:
      if (rank_ == collective.root) copy_bytes(to, from(), block.bytes);
      return;
    case CollectiveKind::scatter:
    case CollectiveKind::all_to_all:  // there by the place of the receiver, then by the own
      if (collective.kind == CollectiveKind::scatter && rank_ != collective.root) return;
      for (std::size_t place = 0; place < size(); ++place) {
        const bool is_for_each = collective.kind == CollectiveKind::all_to_all;
        const std::size_t slot = is_for_each ? place * rank_count(host_) + static_cast<std::size_t>(index_) : place;
        copy_bytes(to + slot * block.slot_bytes,
                   from() + static_cast<std::size_t>(layout_.rank_at(place)) * block.rank_bytes, block.bytes);
      }
      return;
    default: return;  // a barrier has no data
  }
}

std::span<std::byte> HostCollectives::slots_of(int host, const Block& block) const {
  return {area(block) + layout_.first_place(host) * block.slot_bytes, rank_count(host) * block.slot_bytes};
}

// Among the leaders: the area of each host -> what its ranks take.
void HostCollectives::exchange(const Collective& collective, const Block& block, const Steps& steps) {
  if (is_summed_over_hosts(collective.kind)) {
    return steps.exchange([&](HostStreams& streams, const HostStreams::Wait& wait) {
      return ring_.all_reduce(streams, {area(block), block.slot_bytes}, exchanged_type(collective), collective.op,
                              size(), wait);
    });
  }
  if (collective.kind == CollectiveKind::broadcast) {
    return broadcast({area(block), block.bytes}, collective.root, steps);
  }
  set_parcels(collective, block);
  steps.exchange([&](HostStreams& streams, const HostStreams::Wait& wait) { return streams.transfer(parcels_, wait); });
  if (collective.kind != CollectiveKind::reduce_scatter) return;
  // The slots of this host's ranks, put together over the hosts. Results lie at the start of these slots, side by side.
  const std::span<std::byte> own = slots_of(host_, block);
  std::byte* const result = own.data();
  sources_.clear();
  for (std::size_t host = 0; host < host_count(); ++host) {
    sources_.push_back(static_cast<int>(host) == host_ ? own.data() : parcels_[host].in.data());
  }
  reduce({collective.output.type, collective.op, size(), Stage::total}, sources_, {&result, 1},
         {0, own.size() / size_of(exchanged_type(collective))});
}

void HostCollectives::set_parcels(const Collective& collective, const Block& block) {
  const std::span<std::byte> own = slots_of(host_, block);
  if (collective.kind == CollectiveKind::reduce_scatter) scratch_.resize(own.size() * host_count());
  const int root_host = process_group::has_root(collective.kind) ? layout_.host_of(collective.root) : 0;
  for (int host = 0; host < layout_.host_count(); ++host) {
    const std::span<std::byte> there = slots_of(host, block);
    HostStreams::Parcel& parcel = parcels_[static_cast<std::size_t>(host)];
    parcel = {};
    switch (collective.kind) {
      case CollectiveKind::reduce_scatter:
        parcel = {there, std::span(scratch_).subspan(static_cast<std::size_t>(host) * own.size(), own.size())};
        break;
      case CollectiveKind::all_gather: parcel = {own, there}; break;
      case CollectiveKind::gather:
        if (host == root_host) parcel.out = own;
        if (host_ == root_host) parcel.in = there;
        break;
      case CollectiveKind::scatter:
        if (host_ == root_host) parcel.out = there;
        if (host == root_host) parcel.in = own;
        break;
      case CollectiveKind::all_to_all: {
        const std::size_t pair_bytes = rank_count(host_) * block.slot_bytes;  // of one rank there and all here
        const std::size_t at = layout_.first_place(host) * pair_bytes;
        parcel = {{area(block) + at, rank_count(host) * pair_bytes},
                  {received_area(block) + at, rank_count(host) * pair_bytes}};
        if (host == host_) copy_bytes(received_area(block) + at, area(block) + at, rank_count(host) * pair_bytes);
        break;
      }
      default: break;
    }
  }
}

// The area -> this rank's output.
void HostCollectives::take(const Collective& collective, const Block& block) const {
  const bool gets = !is_of_input(collective.kind) || rank_ == collective.root;
  if (!gets) return;
  std::byte* const to = output_of(collective) + block.begin_bytes;
  const auto rank_in_host = static_cast<std::size_t>(index_);
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::reduce: return take_reduced(collective, block);
    case CollectiveKind::broadcast:
      if (rank_ != collective.root) copy_bytes(to, area(block), block.bytes);
      return;
    case CollectiveKind::all_gather:
    case CollectiveKind::gather:
      for (std::size_t place = 0; place < size(); ++place) {
        copy_bytes(to + static_cast<std::size_t>(layout_.rank_at(place)) * block.rank_bytes,
                   area(block) + place * block.slot_bytes, block.bytes);
      }
      return;
    case CollectiveKind::scatter:
      return copy_bytes(to, slots_of(host_, block).data() + rank_in_host * block.slot_bytes, block.bytes);
    case CollectiveKind::reduce_scatter:
      return copy_bytes(to, slots_of(host_, block).data() + rank_in_host * block.bytes, block.bytes);
    case CollectiveKind::all_to_all:  // from each host by the receiver here, then by the sender there
      for (int host = 0; host < layout_.host_count(); ++host) {
        const std::byte* const from =
            received_area(block) +
            (layout_.first_place(host) * rank_count(host_) + rank_in_host * rank_count(host)) * block.slot_bytes;
        for (std::size_t i = 0; i < rank_count(host); ++i) {
          const auto sender = static_cast<std::size_t>(layout_.ranks_of(host)[i]);
          copy_bytes(to + sender * block.rank_bytes, from + i * block.slot_bytes, block.bytes);
        }
      }
      return;
    default: return;
  }
}

void HostCollectives::take_reduced(const Collective& collective, const Block& block) const {
  std::byte* const to = output_of(collective) + block.begin_bytes;
  const DataType type = type_of(collective);
  if (type == exchanged_type(collective)) return copy_bytes(to, area(block), block.bytes);
  const std::byte* const from = area(block);
  reduce({type, ReduceOp::sum, 1, Stage::total}, {&from, 1}, {&to, 1}, {0, block.count});
}

}  // namespace ddp::cpu_backend
