#include "worker_runtime/core/failure/fingerprint.hpp"

#include <array>
#include <cstdio>

namespace ddp::core {

namespace {

constexpr int kTypeShift = 8;
constexpr int kOpShift = 16;
constexpr int kWithinShift = 24;
constexpr int kRootShift = 32;
constexpr std::uint64_t kByteMask = 0xff;

std::string elements(const Fingerprint& of) { return std::to_string(of.count) + " " + name_of(of.type); }

std::string operation(const Fingerprint& of) { return std::string(" (") + process_group::name_of(of.op) + ")"; }

// The counts themselves are too many to be shown.
std::string parts(const Fingerprint& of) {
  std::array<char, 9> checksum{};
  std::snprintf(checksum.data(), checksum.size(), "%08x", static_cast<unsigned>(of.root));
  return " in all, the ranks' counts have the checksum " + std::string(checksum.data());
}

std::string rank_of(const Fingerprint& of) {
  return of.root == process_group::kAnyRank ? "any rank" : "rank " + std::to_string(of.root);
}

// Not inlined: the small calls, which have no counts, would pay for its registers.
[[gnu::noinline]] Fingerprint fingerprint_of_parts(const Collective& collective) {
  Fingerprint print;
  print.kind = collective.kind;
  print.within = collective.within;
  print.type = collective.input.type;
  if (process_group::has_op(collective.kind)) print.op = collective.op;
  if (collective.kind == CollectiveKind::all_to_all_v) return print;
  const bool is_of_output = collective.kind == CollectiveKind::all_gather_v;
  const auto& counts = is_of_output ? collective.counts->of_output : collective.counts->of_input;
  print.count = process_group::total_of(counts);
  print.root = static_cast<int>(process_group::checksum_of(counts));
  return print;
}

}  // namespace

Fingerprint fingerprint_of(const Collective& collective) {
  Fingerprint print;
  print.kind = collective.kind;
  print.within = collective.within;
  if (collective.kind == CollectiveKind::barrier) return print;
  if (collective.counts) return fingerprint_of_parts(collective);
  const bool is_of_output = collective.kind == CollectiveKind::reduce_scatter ||
                            collective.kind == CollectiveKind::scatter || collective.kind == CollectiveKind::receive ||
                            collective.kind == CollectiveKind::allocate;
  print.count = is_of_output ? collective.output.count : collective.input.count;
  if (collective.kind == CollectiveKind::allocate) return print;
  print.type = is_of_output ? collective.output.type : collective.input.type;
  if (process_group::has_op(collective.kind)) print.op = collective.op;
  if (process_group::has_root(collective.kind)) print.root = collective.root;
  return print;
}

FingerprintWords encode(const Fingerprint& print) {
  const auto what = static_cast<std::uint64_t>(print.kind) | static_cast<std::uint64_t>(print.type) << kTypeShift |
                    static_cast<std::uint64_t>(print.op) << kOpShift |
                    static_cast<std::uint64_t>(print.within) << kWithinShift |
                    static_cast<std::uint64_t>(print.root) << kRootShift;
  return {what, print.count, print.location};
}

Fingerprint decode(const FingerprintWords& words) {
  Fingerprint print;
  print.kind = static_cast<CollectiveKind>(words[0] & kByteMask);
  print.type = static_cast<DataType>(words[0] >> kTypeShift & kByteMask);
  print.op = static_cast<ReduceOp>(words[0] >> kOpShift & kByteMask);
  print.within = static_cast<Within>(words[0] >> kWithinShift & kByteMask);
  print.root = static_cast<int>(words[0] >> kRootShift);
  print.count = words[1];
  print.location = words[2];
  return print;
}

std::string describe(const Fingerprint& print) {
  if (print.within != Within::nothing) return process_group::name_of(print.within);
  const std::string name = name_of(print.kind);
  switch (print.kind) {
    case CollectiveKind::barrier: return name;
    case CollectiveKind::allocate: return name + " of " + std::to_string(print.count) + " bytes";
    case CollectiveKind::all_reduce: return name + " of " + elements(print) + operation(print);
    case CollectiveKind::broadcast:
    case CollectiveKind::receive: return name + " of " + elements(print) + " from " + rank_of(print);
    case CollectiveKind::all_gather:
    case CollectiveKind::all_to_all: return name + " of " + elements(print) + " per rank";
    case CollectiveKind::reduce_scatter: return name + " of " + elements(print) + " per rank" + operation(print);
    case CollectiveKind::reduce: return name + " of " + elements(print) + operation(print) + " to " + rank_of(print);
    case CollectiveKind::gather: return name + " of " + elements(print) + " per rank to " + rank_of(print);
    case CollectiveKind::scatter: return name + " of " + elements(print) + " per rank from " + rank_of(print);
    case CollectiveKind::all_gather_v: return name + " of " + elements(print) + parts(print);
    case CollectiveKind::reduce_scatter_v: return name + " of " + elements(print) + operation(print) + parts(print);
    case CollectiveKind::all_to_all_v: return name + " of " + name_of(print.type);
    case CollectiveKind::send: return name + " of " + elements(print) + " to " + rank_of(print);
  }
  return name;
}

bool same_call(const Fingerprint& a, const Fingerprint& b) {
  return a.kind == b.kind && a.within == b.within && a.type == b.type && a.op == b.op && a.root == b.root &&
         a.count == b.count;
}

std::string describe_difference(const CallOfRank& one, const CallOfRank& other) {
  if (other.rank < one.rank) return describe_difference(other, one);
  return "rank " + std::to_string(one.rank) + " called " + one.call + ", rank " + std::to_string(other.rank) +
         " called " + other.call;
}

std::optional<std::string> first_difference(const std::vector<Fingerprint>& of_ranks) {
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank) {
    if (same_call(of_ranks[0], of_ranks[rank])) continue;
    return describe_difference({0, describe(of_ranks[0])}, {static_cast<int>(rank), describe(of_ranks[rank])});
  }
  return std::nullopt;
}

}  // namespace ddp::core
