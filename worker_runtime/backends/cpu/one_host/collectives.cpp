#include "worker_runtime/backends/cpu/one_host/collectives.hpp"

#include <algorithm>
#include <bit>
#include <chrono>

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kLargeBytes = 1u << 16;  // less goes through the staging and the caches, whatever the machine
// In none of a core's own caches: what holds of these holds of larger ones.
constexpr std::size_t kAlikeBytes = 1u << 24;

}  // namespace

Collectives::Collectives(int rank, int size, Arrivals& arrivals, const SharedMemory& memory, const PeerMemory& peers,
                         std::shared_ptr<Segment> staging)
    : rank_(rank),
      size_(size),
      arrivals_(arrivals),
      memory_(memory),
      peers_(peers),
      can_read_(peers.can_read_all()),
      staging_(size, std::move(staging)),
      small_(rank, size, arrivals, staging_),
      in_place_(rank, size),
      staged_(rank, size, staging_),
      from_peers_(rank, size, arrivals, peers, staging_, staged_) {}

void Collectives::run(const Collective& collective, Steps& steps) {
  const Shape shape = shape_of(collective, rank_, size_);
  Fingerprint call = core::fingerprint_of(collective);
  if (small_.has(shape)) {
    arrivals_.posts().post(call);
    small_.give(collective, shape);
    steps.meet();
    small_.prepare_next(shape);
    steps.require_same_calls();
    return small_.take(collective, shape);
  }
  const ConstMemoryRange memory = memory_for_others(collective);
  const auto placement = memory.count > 0 ? memory_.find(memory.data, memory.bytes()) : std::nullopt;
  if (placement) call.location = placement->location;
  const bool is_large = shape.input_bytes() >= kLargeBytes;
  const int decider = decider_of(collective);
  const auto size_class = std::bit_width(std::min(shape.input_bytes(), kAlikeBytes));
  Choice* const choice = is_large ? &choices_[{collective.kind, shape.type, decider, size_class}] : nullptr;
  const Algorithm algorithm = is_large ? choice->next : Algorithm::cached;
  arrivals_.posts().post(
      call, algorithm == Algorithm::read ? address_for_peers(collective, shape, placement.has_value()) : 0);
  if (is_large && rank_ == decider) {
    const Algorithm next = placement ? algorithm : choice->times.next(can_read_);
    arrivals_.posts().put_data(&next, sizeof next);
  }
  steps.meet();
  steps.require_same_calls();
  if (is_large) arrivals_.posts().get_data(decider, &choice->next, sizeof choice->next);
  if (placement && all_are_at(placement->location)) return in_place_.run(collective, shape, *placement, steps);
  const auto begin = is_large ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
  const bool was_used = run_on_plain_memory(collective, shape, algorithm, steps);
  if (!is_large || rank_ != decider) return;
  const auto took = std::chrono::steady_clock::now() - begin;
  // An algorithm that could not be used is not to be preferred.
  choice->times.took(algorithm, was_used ? took : 2 * took, shape.input_bytes());
}

// Whose time is that of the call: one who takes something.
int Collectives::decider_of(const Collective& collective) const {
  switch (collective.kind) {
    case CollectiveKind::broadcast:
    case CollectiveKind::scatter: return (collective.root + 1) % size_;
    case CollectiveKind::reduce:
    case CollectiveKind::gather: return collective.root;
    default: return 0;
  }
}

// Returns whether the algorithm could be used.
bool Collectives::run_on_plain_memory(const Collective& collective, const Shape& shape, Algorithm algorithm,
                                      Steps& steps) {
  if (algorithm == Algorithm::read && may_read_peers()) {
    can_read_ = from_peers_.run(collective, shape, steps);
    return can_read_;
  }
  staged_.run(collective, shape, arrivals_.next_half(), algorithm == Algorithm::streamed, steps);
  return algorithm != Algorithm::read;
}

// 0 where the others can't read this rank's input; of one that they don't read, any other number.
std::uint64_t Collectives::address_for_peers(const Collective& collective, const Shape& shape,
                                             bool is_registered) const {
  if (!shape.gives) return 1;
  if (!is_registered && !peers_.is_readable(collective.input.data, shape.input_bytes())) return 0;
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(collective.input.data));
}

bool Collectives::may_read_peers() {
  if (!can_read_) return false;
  for (int rank = 0; rank < size_; ++rank) {
    const std::uint64_t address = arrivals_.posts().address(rank);
    if (address == 0) return false;
    from_peers_.set_input(rank, address);
  }
  return true;
}

bool Collectives::all_are_at(std::uint64_t location) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (arrivals_.posts().location(rank) != location) return false;
  }
  return true;
}

}  // namespace ddp::cpu_backend
