#include "worker_runtime/cpu_backend/one_host/collectives.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kLargeBytes = 1u << 16;  // less goes through the staging and the caches, whatever the machine
constexpr std::size_t kAlikeBytes = 1u << 24;  // in none of a core's own caches: what holds of these holds of larger ones

}  // namespace

Collectives::Collectives(int rank, int size, Arrivals& arrivals, const SharedMemory& memory,
                         const PeerMemory& peers, std::shared_ptr<Segment> staging)
    : rank_(rank),
      size_(size),
      arrivals_(arrivals),
      memory_(memory),
      peers_(peers),
      staging_(size, std::move(staging)),
      small_(rank, size, arrivals, staging_),
      in_place_(rank, size),
      from_peers_(rank, size, peers),
      staged_(rank, size, staging_) {}

void Collectives::run(const Collective& collective, Steps& steps) {
  const Shape shape = shape_of(collective, rank_, size_);
  Fingerprint call = fingerprint_of(collective);
  if (small_.has(shape)) {
    arrivals_.post(call);
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
  Ways* const ways = is_large ? &ways_[{collective.kind, std::bit_width(std::min(shape.input_bytes(), kAlikeBytes))}] : nullptr;
  const Way way = is_large ? ways->next : Way::cached;
  arrivals_.post(call, way == Way::read ? address_for_peers(collective, shape, placement.has_value()) : 0);
  if (is_large) {
    const Way next = placement ? way : ways->times.next(peers_.can_read_all());
    arrivals_.put_data(&next, sizeof next);
  }
  steps.meet();
  steps.require_same_calls();
  if (is_large) arrivals_.get_data(0, &ways->next, sizeof ways->next);
  if (placement && all_are_at(placement->location)) return in_place_.run(collective, shape, *placement, steps);
  if (!is_large || rank_ != 0) return run_on_plain_memory(collective, shape, way, steps);
  const auto begin = std::chrono::steady_clock::now();
  run_on_plain_memory(collective, shape, way, steps);
  ways->times.took(way, std::chrono::steady_clock::now() - begin, shape.input_bytes());
}

void Collectives::run_on_plain_memory(const Collective& collective, const Shape& shape, Way way, Steps& steps) {
  if (way == Way::read && may_read_peers()) return from_peers_.run(collective, shape, steps);
  staged_.run(collective, shape, arrivals_.next_half(), way == Way::streamed, steps);
}

// 0 where the others can't read this rank's input; of one that they don't read, any other number.
std::uint64_t Collectives::address_for_peers(const Collective& collective, const Shape& shape, bool is_registered) const {
  if (!shape.gives) return 1;
  if (!is_registered && !peers_.is_readable(collective.input.data, shape.input_bytes())) return 0;
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(collective.input.data));
}

bool Collectives::may_read_peers() {
  for (int rank = 0; rank < size_; ++rank) {
    const std::uint64_t address = arrivals_.address(rank);
    if (address == 0) return false;
    from_peers_.set_input(rank, address);
  }
  return true;
}

bool Collectives::all_are_at(std::uint64_t location) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (arrivals_.location(rank) != location) return false;
  }
  return true;
}

}  // namespace ddp::cpu_backend
