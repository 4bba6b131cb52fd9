#include "worker_runtime/backends/cpu/hosts/gathered_collectives.hpp"

#include <algorithm>
#include <utility>

#include "worker_runtime/backends/cpu/hosts/collective_shape.hpp"

namespace ddp::cpu_backend {

std::size_t GatheredCollectives::area_bytes(const HostLayout& layout) {
  const auto hosts = static_cast<std::size_t>(layout.host_count());
  return hosts * in_whole_lines(HostOpening::bytes_max(layout.host_count()));
}

GatheredCollectives::GatheredCollectives(const HostLayout& layout, int rank, std::shared_ptr<Segment> staging,
                                         std::byte* area)
    : layout_(layout),
      rank_(rank),
      host_(layout.host_of(rank)),
      staging_(std::move(staging)),
      area_(area),
      of_hosts_(static_cast<std::size_t>(layout.host_count())) {}

bool GatheredCollectives::takes(const Collective& collective) const {
  const std::size_t most = HostOpening::bytes_max(layout_.host_count());
  if (count_per_rank(collective, layout_.size()) > most) return false;  // and no product below is beyond a number
  for (int host = 0; host < layout_.host_count(); ++host) {
    if (bytes_of(collective, host) > most) return false;
  }
  return true;
}

std::size_t GatheredCollectives::bytes_of(const Collective& collective, int host) const {
  const std::size_t bytes = count_per_rank(collective, layout_.size()) * size_of(exchanged_type(collective));
  const std::size_t ranks = layout_.ranks_of(host).size();
  const bool is_of_root = process_group::has_root(collective.kind) && layout_.host_of(collective.root) == host;
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::reduce: return bytes;
    case CollectiveKind::reduce_scatter: return size() * bytes;
    case CollectiveKind::broadcast: return is_of_root ? bytes : 0;
    case CollectiveKind::scatter: return is_of_root ? size() * bytes : 0;
    case CollectiveKind::all_gather:
    case CollectiveKind::gather: return ranks * bytes;
    case CollectiveKind::all_to_all: return ranks * size() * bytes;
    default: return 0;
  }
}

void GatheredCollectives::stage(const Collective& collective) {
  const bool gives =
      !process_group::has_root(collective.kind) || is_of_input(collective.kind) || rank_ == collective.root;
  if (!is_alone() && gives) copy_bytes(staging_->own_part(), input_of(collective), collective.input.bytes());
}

std::span<const std::byte> GatheredCollectives::put_together(const Collective& collective) {
  const std::size_t bytes = bytes_of(collective, host_);
  if (bytes == 0) return {};
  const auto& here = layout_.ranks_of(host_);
  const auto given_by = [&](std::size_t index) {
    return is_alone() ? input_of(collective) : staging_->part(static_cast<int>(index));
  };
  std::byte* const together = area_;
  if (process_group::has_op(collective.kind)) {
    const DataType type = type_of(collective);
    if (is_alone() && type == exchanged_type(collective)) return {input_of(collective), bytes};
    sources_.clear();
    for (std::size_t index = 0; index < here.size(); ++index) sources_.push_back(given_by(index));
    reduce({type, collective.op, 1, Stage::partial}, sources_, {&together, 1},
           {0, bytes / size_of(exchanged_type(collective))});
    return {together, bytes};
  }
  if (process_group::has_root(collective.kind) && !is_of_input(collective.kind)) {
    return {given_by(static_cast<std::size_t>(layout_.index_of(collective.root))), bytes};
  }
  if (is_alone()) return {input_of(collective), bytes};
  const std::size_t each = bytes / here.size();
  for (std::size_t index = 0; index < here.size(); ++index) copy_bytes(together + index * each, given_by(index), each);
  return {together, bytes};
}

// Ranks that are no leader see what is in the area. The own bytes may stand at its start already, so hosts are placed
// from the own one on.
void GatheredCollectives::hand_out(const Collective& collective, const HostOpening& opening) {
  std::byte* to = area_;
  for (int i = 0; i < layout_.host_count(); ++i) {
    const int host = (host_ + i) % layout_.host_count();
    const auto bytes = opening.bytes_of(host);
    of_hosts_[static_cast<std::size_t>(host)] = is_alone() ? bytes.data() : to;
    if (!is_alone()) copy_bytes(to, bytes.data(), bytes.size());
    to += in_whole_lines(bytes_of(collective, host));
  }
}

void GatheredCollectives::finish(const Collective& collective) {
  if (!is_alone()) {
    const std::byte* at = area_;
    for (int i = 0; i < layout_.host_count(); ++i) {
      const int host = (host_ + i) % layout_.host_count();
      of_hosts_[static_cast<std::size_t>(host)] = at;
      at += in_whole_lines(bytes_of(collective, host));
    }
  }
  const std::size_t bytes = count_per_rank(collective, layout_.size()) * size_of(type_of(collective));
  if (bytes == 0) return;
  const bool gets = !is_of_input(collective.kind) || rank_ == collective.root;
  if (!gets) return;
  std::byte* const to = output_of(collective);
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::reduce: return total(collective, 0);
    case CollectiveKind::reduce_scatter:
      return total(collective,
                   static_cast<std::size_t>(rank_) * collective.output.count * size_of(exchanged_type(collective)));
    case CollectiveKind::broadcast:
    case CollectiveKind::scatter: {
      const bool is_for_all = collective.kind == CollectiveKind::broadcast;
      if (is_for_all && rank_ == collective.root) return;
      const std::byte* const from = of_hosts_[static_cast<std::size_t>(layout_.host_of(collective.root))];
      return copy_bytes(to, from + (is_for_all ? 0 : static_cast<std::size_t>(rank_) * bytes), bytes);
    }
    case CollectiveKind::all_gather:
    case CollectiveKind::gather:
    case CollectiveKind::all_to_all:
      for (int rank = 0; rank < layout_.size(); ++rank) {
        copy_bytes(to + static_cast<std::size_t>(rank) * bytes, part_of(collective, rank), bytes);
      }
      return;
    default: return;
  }
}

// What a rank gave to this one.
const std::byte* GatheredCollectives::part_of(const Collective& collective, int rank) const {
  const std::size_t bytes = count_per_rank(collective, layout_.size()) * size_of(type_of(collective));
  const std::size_t index = static_cast<std::size_t>(layout_.index_of(rank));
  const bool is_for_each = collective.kind == CollectiveKind::all_to_all;
  const std::size_t at = is_for_each ? index * size() + static_cast<std::size_t>(rank_) : index;
  return of_hosts_[static_cast<std::size_t>(layout_.host_of(rank))] + at * bytes;
}

// The output, of what all hosts have at a place.
void GatheredCollectives::total(const Collective& collective, std::size_t at_bytes) {
  sources_.clear();
  for (const std::byte* of_host : of_hosts_) sources_.push_back(of_host + at_bytes);
  std::byte* const to = output_of(collective);
  reduce({type_of(collective), collective.op, size(), Stage::total}, sources_, {&to, 1}, {0, collective.output.count});
}

}  // namespace ddp::cpu_backend
