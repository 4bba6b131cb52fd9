#include "worker_runtime/cpu_backend/collectives.hpp"

#include <utility>

namespace ddp::cpu_backend {

Collectives::Collectives(int rank, int size, Arrivals& arrivals, const SharedMemory& memory,
                         std::shared_ptr<Segment> staging)
    : rank_(rank),
      size_(size),
      arrivals_(arrivals),
      memory_(memory),
      staging_(size, std::move(staging)),
      small_(rank, size, arrivals, staging_),
      in_place_(rank, size),
      staged_(rank, size, staging_) {}

void Collectives::run(const Collective& collective, const Steps& steps) {
  const Shape shape = shape_of(collective, rank_, size_);
  Fingerprint call = fingerprint_of(collective);
  if (small_.has(shape)) {
    arrivals_.post(call);
    small_.give(collective, shape);
    steps.arrive();
    small_.prepare_next(shape);
    steps.wait();
    steps.require_same_calls();
    return small_.take(collective, shape);
  }
  const ConstMemoryRange memory = memory_for_others(collective);
  const auto placement = memory.count > 0 ? memory_.find(memory.data, memory.bytes()) : std::nullopt;
  if (placement) call.location = placement->location;
  arrivals_.post(call);
  steps.meet();
  steps.require_same_calls();
  if (placement && all_are_at(placement->location)) {
    return in_place_.run(collective, shape, *placement, steps.meet);
  }
  staged_.run(collective, shape, arrivals_.next_half(), steps.meet);
}

bool Collectives::all_are_at(std::uint64_t location) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (arrivals_.location(rank) != location) return false;
  }
  return true;
}

}  // namespace ddp::cpu_backend
