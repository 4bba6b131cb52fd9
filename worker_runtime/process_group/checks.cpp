#include "worker_runtime/process_group/checks.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "ddp/error.hpp"
#include "worker_runtime/tensor/scalar.hpp"

namespace ddp::process_group {

namespace {

[[noreturn]] void refuse(CollectiveKind kind, const std::string& what) {
  throw InvalidArgument(std::string(name_of(kind)) + ": " + what);
}

std::string text_of(const Device& device) {
  return (device.kind == Device::Kind::cpu ? "cpu:" : "cuda:") + std::to_string(device.index);
}

std::string devices_of(const Backend& backend) {
  const Device host{};
  const std::string own = text_of(backend.device());
  return backend.device() != host && backend.reaches(host) ? own + " or " + text_of(host) : own;
}

std::string text_of(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", number);
  return text.data();
}

// Which ranges a rank has.
struct Has {
  bool input = true;
  bool output = true;
};

Has ranges_of(const Collective& collective, int rank) {
  const bool is_root = rank == collective.root;
  switch (collective.kind) {
    case CollectiveKind::barrier:
    case CollectiveKind::allocate: return {false, false};
    case CollectiveKind::reduce:
    case CollectiveKind::gather: return {true, is_root};
    case CollectiveKind::scatter: return {is_root, true};
    case CollectiveKind::send: return {true, false};
    case CollectiveKind::receive: return {false, true};
    case CollectiveKind::all_reduce:
    case CollectiveKind::broadcast:
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all:
    case CollectiveKind::all_gather_v:
    case CollectiveKind::reduce_scatter_v:
    case CollectiveKind::all_to_all_v: return {true, true};
  }
  return {};
}

bool is_between_two(CollectiveKind kind) { return kind == CollectiveKind::send || kind == CollectiveKind::receive; }

void take_tag(Collective& collective, int tag) {
  if (!is_between_two(collective.kind)) {
    refuse(collective.kind, "a tag of " + std::to_string(tag) + ", which only sends and receives have");
  }
  if (tag < 0) refuse(collective.kind, "a tag of " + std::to_string(tag) + "; tags are 0 or above");
  collective.tag = tag;
}

void check_root(const Collective& collective, const GroupMember& who) {
  if (!has_root(collective.kind)) return;
  if (collective.source != nullptr) {
    if (who.size == 1) refuse(collective.kind, "there is no other rank to receive from");
    return;
  }
  const bool is_pair = is_between_two(collective.kind);
  if (collective.root < 0 || collective.root >= who.size) {
    refuse(collective.kind, std::string(is_pair ? "the peer" : "root") + " is " + std::to_string(collective.root) +
                                ", ranks are 0 to " + std::to_string(who.size - 1));
  }
  if (is_pair && collective.root == who.rank) {
    refuse(collective.kind, "the peer is this rank itself, " + std::to_string(who.rank));
  }
}

// A bare pointer says nothing of its device, and so means host memory.
[[noreturn]] void refuse_device(CollectiveKind kind, const char* which, const ConstMemoryRange& range,
                                const Backend& backend) {
  const auto owner = range.device == Device{} ? backend.owner_of(range.data) : std::nullopt;
  if (owner) {
    refuse(kind, std::string(which) + " says that it is host memory, and is a pointer into that of " + text_of(*owner) +
                     "\ntry:   MemoryRange(pointer, count, type, group.device())");
  }
  refuse(kind,
         std::string(which) + " is on " + text_of(range.device) + ", the group's memory on " + devices_of(backend));
}

void check_range(CollectiveKind kind, const char* which, const ConstMemoryRange& range, const Backend& backend) {
  if (!backend.takes(range)) refuse_device(kind, which, range, backend);
  const std::size_t element_bytes = size_of(range.type);  // a power of two
  if (range.count > (SIZE_MAX / 2) >> std::countr_zero(element_bytes)) {
    refuse(kind, std::string(which) + " of " + std::to_string(range.count) + " elements is larger than any memory");
  }
  if (range.count > 0 && range.data == nullptr) {
    refuse(kind, std::string(which) + " of " + std::to_string(range.count) + " elements is null");
  }
  if ((reinterpret_cast<std::uintptr_t>(range.data) & (element_bytes - 1)) != 0) {
    refuse(kind, std::string(which) + " is not aligned to " + name_of(range.type));
  }
}

void check_empty(CollectiveKind kind, const char* which, const ConstMemoryRange& range, const GroupMember& who,
                 int root) {
  if (range.count == 0) return;
  refuse(kind, std::string(which) + " of " + std::to_string(range.count) + " elements on rank " +
                   std::to_string(who.rank) + ", which is not root (" + std::to_string(root) + ") and has none");
}

void check_alike(CollectiveKind kind, const ConstMemoryRange& input, const ConstMemoryRange& output) {
  if (input.device != output.device) {
    refuse(kind, "input is on " + text_of(input.device) + ", output on " + text_of(output.device));
  }
  if (input.type == output.type) return;
  refuse(kind, std::string("input and output differ in type: ") + name_of(input.type) + " and " + name_of(output.type));
}

// Of a premul_sum the factor has to be in the type of the elements, as NCCL takes it.
void take_factor(Collective& collective, double factor, DataType type) {
  const CollectiveKind kind = collective.kind;
  if (collective.op != ReduceOp::premul_sum || !has_op(kind)) {
    refuse(kind, "a factor of " + text_of(factor) + " without ReduceOp::premul_sum, which alone has one");
  }
  if (!tensor::is_floating(type)) {
    refuse(kind, std::string("there is no premul_sum of ") + name_of(type) + "\ntry:   a floating-point type");
  }
  if (!tensor::scalar_of(factor, type)) {
    refuse(kind, "the factor " + text_of(factor) + " is no finite " + name_of(type));
  }
  collective.factor = factor;
}

void check_reduced_type(const Collective& collective, DataType type) {
  if (type != DataType::boolean || collective.op != ReduceOp::average || !has_op(collective.kind)) return;
  refuse(collective.kind, "there is no average of bool\ntry:   a sum (whether any is true), or uint8");
}

// The larger range holds one part of the other's size for each rank.
void check_parts(CollectiveKind kind, const ConstMemoryRange& all, const ConstMemoryRange& one, int size) {
  const auto parts = static_cast<std::size_t>(size);
  if (all.count % parts == 0 && all.count / parts == one.count) return;
  refuse(kind, "a range of " + std::to_string(all.count) + " elements is not " + std::to_string(size) + " times " +
                   std::to_string(one.count));
}

bool overlap(const ConstMemoryRange& a, const ConstMemoryRange& b) {
  const auto begin_a = reinterpret_cast<std::uintptr_t>(a.data);
  const auto begin_b = reinterpret_cast<std::uintptr_t>(b.data);
  return begin_a < begin_b + b.bytes() && begin_b < begin_a + a.bytes();
}

// `one` may be the rank's own part of `all`.
void check_own_part(CollectiveKind kind, const ConstMemoryRange& all, const ConstMemoryRange& one, int rank,
                    const char* one_overlaps_all) {
  const std::size_t own = static_cast<std::size_t>(rank) * one.bytes();
  const bool in_place = one.data == static_cast<const std::byte*>(all.data) + own;
  if (in_place || !overlap(one, all)) return;
  refuse(kind, std::string(one_overlaps_all) + ", and is not this rank's own part of it");
}

// One for each rank, which together are what the range has.
void check_counts(CollectiveKind kind, const char* which, const std::vector<std::size_t>& counts,
                  const ConstMemoryRange& range, int size) {
  if (counts.size() != static_cast<std::size_t>(size)) {
    refuse(kind, std::to_string(counts.size()) + " counts of the " + which + ", there are " + std::to_string(size) +
                     " ranks");
  }
  std::size_t rest = range.count;
  for (const std::size_t count : counts) {
    if (count <= rest) {
      rest -= count;
    } else {
      refuse(kind, std::string("the counts of the ") + which + " are more in all than its " +
                       std::to_string(range.count) + " elements");
    }
  }
  if (rest == 0) return;
  refuse(kind, "the counts of the " + std::string(which) + " are " + std::to_string(range.count - rest) +
                   " in all, it has " + std::to_string(range.count) + " elements");
}

void check_own_count(CollectiveKind kind, const char* which, const std::vector<std::size_t>& counts,
                     const ConstMemoryRange& range, int rank) {
  const std::size_t own = counts[static_cast<std::size_t>(rank)];
  if (range.count == own) return;
  refuse(kind, std::string(which) + " has " + std::to_string(range.count) + " elements, this rank's count is " +
                   std::to_string(own));
}

// What a rank gives itself.
void check_own_counts(CollectiveKind kind, const PartCounts& counts, int rank) {
  const std::size_t given = counts.of_input[static_cast<std::size_t>(rank)];
  const std::size_t taken = counts.of_output[static_cast<std::size_t>(rank)];
  if (given == taken) return;
  refuse(kind, "this rank gives itself " + std::to_string(given) + " elements, and expects " + std::to_string(taken));
}

void check_uneven(const Collective& collective, const GroupMember& who) {
  const CollectiveKind kind = collective.kind;
  const ConstMemoryRange& input = collective.input;
  const ConstMemoryRange output = collective.output;
  const PartCounts& counts = *collective.counts;
  if (kind != CollectiveKind::all_gather_v) check_counts(kind, "input", counts.of_input, input, who.size);
  if (kind != CollectiveKind::reduce_scatter_v) check_counts(kind, "output", counts.of_output, output, who.size);
  switch (kind) {
    case CollectiveKind::all_gather_v: {
      check_own_count(kind, "input", counts.of_output, input, who.rank);
      const std::size_t own = part_begin(counts.of_output, who.rank) * size_of(output.type);
      const bool is_in_place = input.data == static_cast<const std::byte*>(output.data) + own;
      if (!is_in_place && overlap(input, output)) {
        refuse(kind, "input overlaps output, and is not this rank's own part of it");
      }
      return;
    }
    case CollectiveKind::reduce_scatter_v: check_own_count(kind, "output", counts.of_input, output, who.rank); break;
    default: check_own_counts(kind, counts, who.rank);
  }
  if (overlap(input, output)) refuse(kind, "output overlaps input");
}

// How input and output of a rank that has both go together.
void check_pair(const Collective& collective, const GroupMember& who) {
  const CollectiveKind kind = collective.kind;
  const ConstMemoryRange& input = collective.input;
  const ConstMemoryRange output = collective.output;
  check_alike(kind, input, output);
  switch (kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::gather:
      check_parts(kind, output, input, who.size);
      return check_own_part(kind, output, input, who.rank, "input overlaps output");
    case CollectiveKind::scatter:
    case CollectiveKind::reduce_scatter:
      check_parts(kind, input, output, who.size);
      return check_own_part(kind, input, output, who.rank, "output overlaps input");
    case CollectiveKind::all_to_all:
      if (input.count != output.count || input.count % static_cast<std::size_t>(who.size) != 0) {
        refuse(kind, "an input of " + std::to_string(input.count) + " and an output of " +
                         std::to_string(output.count) + " elements are not " + std::to_string(who.size) +
                         " times the same");
      }
      if (overlap(input, output)) refuse(kind, "output overlaps input");
      return;
    case CollectiveKind::reduce:
      if (input.count != output.count) {
        refuse(kind, "an input of " + std::to_string(input.count) + " elements, an output of " +
                         std::to_string(output.count));
      }
      if (input.data != output.data && overlap(input, output)) {
        refuse(kind, "output overlaps input, and is not the same memory");
      }
      return;
    case CollectiveKind::all_gather_v:
    case CollectiveKind::reduce_scatter_v:
    case CollectiveKind::all_to_all_v: return check_uneven(collective, who);
    default: return;  // in place
  }
}

}  // namespace

std::chrono::milliseconds checked_timeout(const ProcessGroup::Impl& group, const CollectiveOptions& options,
                                          const char* call) {
  if (options.timeout.count() >= 0) return options.timeout.count() > 0 ? options.timeout : group.timeout();
  throw InvalidArgument(std::string(call) + ": a timeout of " + std::to_string(options.timeout.count()) + " ms");
}

void check(const ProcessGroup::Impl& group, Collective& collective, const CollectiveOptions& options) {
  const CollectiveKind kind = collective.kind;
  const GroupMember& who = group.member();
  const Backend& backend = group.backend();
  collective.timeout = options.timeout.count() == 0 ? group.timeout() : checked_timeout(group, options, name_of(kind));
  collective.stream = options.stream;
  if (has_op(kind) && collective.op > ReduceOp::premul_sum) {
    refuse(kind, "there is no ReduceOp with the number " + std::to_string(static_cast<int>(collective.op)));
  }
  check_root(collective, who);
  if (options.tag != 0) take_tag(collective, options.tag);
  const Has has = ranges_of(collective, who.rank);
  if (has.input) check_range(kind, "input", collective.input, backend);
  if (has.output) check_range(kind, "output", collective.output, backend);
  if (has.input && has.output) check_pair(collective, who);
  const DataType type = has.input ? collective.input.type : collective.output.type;
  check_reduced_type(collective, type);
  if (options.factor != 1 || collective.op == ReduceOp::premul_sum) take_factor(collective, options.factor, type);
  if (!has.input) {
    check_empty(kind, "input", collective.input, who, collective.root);
    const Device device = has.output ? collective.output.device : backend.device();
    collective.input = {nullptr, 0, collective.output.type, device};
  }
  if (!has.output) {
    check_empty(kind, "output", collective.output, who, collective.root);
    collective.output = {nullptr, 0, collective.input.type, collective.input.device};
  }
}

}  // namespace ddp::process_group
