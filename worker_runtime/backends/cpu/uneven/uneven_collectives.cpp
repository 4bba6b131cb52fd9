#include "worker_runtime/backends/cpu/uneven/uneven_collectives.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "worker_runtime/backends/cpu/one_host/shape.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_call.hpp"
#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

namespace {

using process_group::part_begin;
using process_group::PartCounts;
using process_group::Within;

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
constexpr int kTypeShift = 56;  // no memory has as many elements

// What one rank gives another, in a word.
std::int64_t word_of(std::size_t count, DataType type) {
  return static_cast<std::int64_t>(count | static_cast<std::uint64_t>(type) << kTypeShift);
}

std::string text_of(std::int64_t word) {
  const auto bits = static_cast<std::uint64_t>(word);
  const std::uint64_t count = bits & ((std::uint64_t{1} << kTypeShift) - 1);
  return std::to_string(count) + " " + name_of(static_cast<DataType>(bits >> kTypeShift));
}

Within within_of(const Collective& collective) {
  switch (collective.kind) {
    case CollectiveKind::all_gather_v: return Within::all_gather_v;
    case CollectiveKind::reduce_scatter_v: return Within::reduce_scatter_v;
    default: return Within::all_to_all_v;
  }
}

// The messages of one rank, in the name of the collective that they are part of.
class Messages {
 public:
  Messages(const Collective& collective, int rank) : collective_(collective), rank_(rank) {}

  void send(const std::byte* from, std::size_t count, int peer) {
    if (count > 0 && peer != rank_) add(CollectiveKind::send, const_cast<std::byte*>(from), count, peer);
  }
  void receive(std::byte* to, std::size_t count, int peer) {
    if (count > 0 && peer != rank_) add(CollectiveKind::receive, to, count, peer);
  }

  std::span<const Collective> all() const { return all_; }

 private:
  void add(CollectiveKind kind, std::byte* data, std::size_t count, int peer) {
    const MemoryRange range(data, count, collective_.input.type);
    const MemoryRange none(nullptr, 0, collective_.input.type);
    const bool is_send = kind == CollectiveKind::send;
    all_.push_back({.kind = kind,
                    .input = is_send ? range : none,
                    .output = is_send ? none : range,
                    .root = peer,
                    .tag = kInnerTag,
                    .timeout = collective_.timeout,
                    .within = within_of(collective_)});
  }

  const Collective& collective_;
  int rank_;
  std::vector<Collective> all_;
};

}  // namespace

void UnevenCollectives::run(const Collective& collective, const Steps& steps) const {
  steps.exchange(collective);  // without its data: all ranks have called the same
  switch (collective.kind) {
    case CollectiveKind::all_gather_v: return all_gather(collective, steps);
    case CollectiveKind::reduce_scatter_v: return reduce_scatter(collective, steps);
    case CollectiveKind::all_to_all_v: return all_to_all(collective, steps);
    default: return;
  }
}

void UnevenCollectives::all_gather(const Collective& collective, const Steps& steps) const {
  const std::vector<std::size_t>& counts = collective.counts->of_output;
  const std::size_t element_bytes = size_of(collective.input.type);
  Messages messages(collective, rank_);
  std::byte* to = output_of(collective);
  for (int peer = 0; peer < layout_.size(); ++peer) {
    const std::size_t count = counts[static_cast<std::size_t>(peer)];
    messages.send(input_of(collective), collective.input.count, peer);
    messages.receive(to, count, peer);
    if (peer == rank_) copy_bytes(to, input_of(collective), count * element_bytes);
    to += count * element_bytes;
  }
  steps.exchange_in_pairs(messages.all());
}

void UnevenCollectives::all_to_all(const Collective& collective, const Steps& steps) const {
  require_same_counts(collective, steps);
  const PartCounts& counts = *collective.counts;
  const std::size_t element_bytes = size_of(collective.input.type);
  Messages messages(collective, rank_);
  const std::byte* from = input_of(collective);
  std::byte* to = output_of(collective);
  for (int peer = 0; peer < layout_.size(); ++peer) {
    const std::size_t given = counts.of_input[static_cast<std::size_t>(peer)];
    const std::size_t taken = counts.of_output[static_cast<std::size_t>(peer)];
    messages.send(from, given, peer);
    messages.receive(to, taken, peer);
    if (peer == rank_) copy_bytes(to, from, taken * element_bytes);
    from += given * element_bytes;
    to += taken * element_bytes;
  }
  steps.exchange_in_pairs(messages.all());
}

void UnevenCollectives::require_same_counts(const Collective& collective, const Steps& steps) const {
  const PartCounts& counts = *collective.counts;
  const auto size = static_cast<std::size_t>(layout_.size());
  const auto exchange = [&](Collective step) {
    step.timeout = collective.timeout;
    step.within = within_of(collective);
    steps.exchange(step);
  };
  std::vector<std::int64_t> given(size), taken(size), told(size);
  for (std::size_t peer = 0; peer < size; ++peer) {
    given[peer] = word_of(counts.of_input[peer], collective.input.type);
    taken[peer] = word_of(counts.of_output[peer], collective.output.type);
  }
  exchange({.kind = CollectiveKind::all_to_all, .input = given, .output = told});
  const auto differs = std::mismatch(told.begin(), told.end(), taken.begin()).first - told.begin();
  const auto peer = static_cast<std::size_t>(differs);
  const bool is_mismatch = peer < size;
  std::array<std::int64_t, 1> first{is_mismatch ? static_cast<std::int64_t>(peer) * layout_.size() + rank_ : kNone};
  const MemoryRange word(first.data(), first.size());
  exchange({.kind = CollectiveKind::all_reduce, .input = word, .output = word, .op = ReduceOp::min});
  if (first[0] == kNone) return;
  const auto giver = static_cast<int>(first[0] / layout_.size());
  const auto taker = static_cast<int>(first[0] % layout_.size());
  std::array<std::int64_t, 2> both{};
  if (rank_ == taker) both = {told[static_cast<std::size_t>(giver)], taken[static_cast<std::size_t>(giver)]};
  const MemoryRange words(both.data(), both.size());
  exchange({.kind = CollectiveKind::broadcast, .input = words, .output = words, .root = taker});
  steps.fail_by_mismatch("in all_to_all_v rank " + std::to_string(giver) + " gives rank " + std::to_string(taker) +
                         " " + text_of(both[0]) + ", and that rank expects " + text_of(both[1]));
}

void UnevenCollectives::reduce_scatter(const Collective& collective, const Steps& steps) const {
  const std::vector<std::size_t>& counts = collective.counts->of_input;
  const std::size_t element_bytes = size_of(collective.input.type);
  const std::size_t own_count = counts[static_cast<std::size_t>(rank_)];
  const std::size_t stride = in_whole_lines(own_count * element_bytes);
  std::vector<std::byte> memory(stride * (static_cast<std::size_t>(layout_.size()) - 1));
  std::vector<const std::byte*> parts;  // by rank
  Messages messages(collective, rank_);
  const std::byte* from = input_of(collective);
  std::byte* to = memory.data();
  for (int peer = 0; peer < layout_.size(); ++peer) {
    const std::size_t count = counts[static_cast<std::size_t>(peer)];
    messages.send(from, count, peer);
    messages.receive(to, own_count, peer);
    parts.push_back(peer == rank_ ? from : to);
    if (peer != rank_) to += stride;
    from += count * element_bytes;
  }
  steps.exchange_in_pairs(messages.all());
  put_together(collective, parts);
}

void UnevenCollectives::put_together(const Collective& collective, const std::vector<const std::byte*>& parts) const {
  const Slice all{0, collective.output.count};
  const DataType type = collective.output.type;
  std::byte* const output = output_of(collective);
  if (layout_.host_count() == 1) return reduce({type, collective.op, parts.size()}, parts, {&output, 1}, all);
  const std::size_t stride = in_whole_lines(collective.output.count * size_of(accumulator_of(type)));
  std::vector<std::byte> memory(stride * static_cast<std::size_t>(layout_.host_count()));
  std::vector<const std::byte*> of_hosts;
  for (int host = 0; host < layout_.host_count(); ++host) {
    std::vector<const std::byte*> here;
    for (const int rank : layout_.ranks_of(host)) here.push_back(parts[static_cast<std::size_t>(rank)]);
    std::byte* const of_host = memory.data() + static_cast<std::size_t>(host) * stride;
    reduce({type, collective.op, parts.size(), Stage::partial}, here, {&of_host, 1}, all);
    of_hosts.push_back(of_host);
  }
  reduce({type, collective.op, parts.size(), Stage::total}, of_hosts, {&output, 1}, all);
}

}  // namespace ddp::cpu_backend
