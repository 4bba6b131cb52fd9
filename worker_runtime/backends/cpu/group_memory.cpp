#include "worker_runtime/backends/cpu/group.hpp"

#include <algorithm>
#include <span>
#include <system_error>
#include <utility>

#include "worker_runtime/core/failure/failure_message.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"

namespace ddp::cpu_backend {

RegisteredMemory Group::allocate(std::size_t bytes, std::chrono::milliseconds timeout) {
  io::Deadline deadline = process_group::deadline_after(timeout);
  queue_->throw_unclaimed_error();
  require_usable();
  const Ticket ticket = log_.record(flight_recorder::allocation_of(bytes, timeout));
  std::shared_ptr<Segment> segment;
  run_in_turn(ticket, [&] {
    recorded(ticket, [&] { take_turn(deadline, [&] { segment = allocate_segment(bytes, deadline); }); });
  });
  void* const data = segment->own_part();
  return {std::shared_ptr<void>(std::move(segment), data), bytes, {}};
}

std::shared_ptr<Segment> Group::allocate_segment(std::size_t bytes, io::Deadline& deadline) {
  require_usable();
  guarded([&] {
    arrivals_.post({.kind = CollectiveKind::allocate, .count = bytes});
    post_deadline(deadline);
    meet(deadline);
    const std::vector<Fingerprint>& here = arrivals_.posted();
    if (!has_hosts()) return require_same_calls(here);
    require_same_calls_over_hosts(nullptr, here, steps_over_hosts(deadline));
  });
  return reserve_on_all(bytes, deadline);
}

void Group::probe_peer_memory(io::Deadline& deadline) {
  const std::span<RankControl> here = memory_->control();
  RankControl& own = here[static_cast<std::size_t>(index_)];
  const PeerMemory::Probe probe = peer_memory_.own_probe();
  own.probe_address.store(probe.address);
  own.probe_word.store(probe.word);
  meet(deadline);
  std::vector<PeerMemory::Probe> probes;
  for (const RankControl& rank : here) probes.push_back({rank.probe_address.load(), rank.probe_word.load()});
  own.reads_all.store(peer_memory_.probe(std::move(probes)) ? 1 : 0);
  meet(deadline);
  peer_memory_.agree(
      std::all_of(here.begin(), here.end(), [](const RankControl& rank) { return rank.reads_all.load() == 1; }));
}

// On all ranks, or on none: then it throws Error, and the group goes on.
std::shared_ptr<Segment> Group::reserve_on_all(std::size_t bytes, io::Deadline& deadline, Gap unused) {
  std::shared_ptr<Segment> segment;
  std::optional<Refusal> refusal;
  guarded([&] {
    refusal = first_refusal(0, memory_->lacks_room_for(bytes), deadline);
    if (refusal) return;
    int error = 0;
    try {
      segment = memory_->reserve(bytes, unused);
    } catch (const std::system_error& failure) {
      error = failure.code().value();
    }
    refusal = first_refusal(1, error, deadline);
  });
  if (refusal) {
    throw Error(core::no_memory_message(
        failed_group(), {.rank = refusal->rank,
                         .bytes = bytes,
                         .memory = "shared memory",
                         .why = std::generic_category().message(refusal->error),
                         .advice = "a smaller size, fewer ranks on this host, or a higher memory limit"}));
  }
  return segment;
}

// Tells the others how step 0 or 1 of reserve_on_all() went here, and hears from them.
std::optional<Group::Refusal> Group::first_refusal(std::size_t step, int own_error, io::Deadline& deadline) {
  const std::span<RankControl> here = memory_->control();
  here[static_cast<std::size_t>(index_)].memory_error[step].store(static_cast<std::uint32_t>(own_error));
  meet(deadline);
  const auto error_of = [&](int index) {
    return static_cast<int>(here[static_cast<std::size_t>(index)].memory_error[step].load());
  };
  std::span<const GatheredWords> all;
  if (has_hosts()) {
    all = gather([&](int index) -> GatheredWords { return {static_cast<std::uint64_t>(error_of(index))}; }, deadline);
  }
  for (int rank = 0; rank < who_.size; ++rank) {
    const int error = has_hosts() ? static_cast<int>(all[layout_.place_of(rank)][0]) : error_of(rank);
    if (error != 0) return Refusal{rank, error};
  }
  return std::nullopt;
}

}  // namespace ddp::cpu_backend
