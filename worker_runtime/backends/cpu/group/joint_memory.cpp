#include "worker_runtime/backends/cpu/group/joint_memory.hpp"

#include <algorithm>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "worker_runtime/core/failure/failure_message.hpp"

namespace ddp::cpu_backend {

JointMemory::Reserved JointMemory::reserve(std::size_t bytes, base::Deadline& deadline, Gap unused) {
  if (const auto refusal = first_refusal(0, memory_.lacks_room_for(bytes), deadline)) return {nullptr, refusal};
  std::shared_ptr<Segment> segment;
  int error = 0;
  try {
    segment = memory_.reserve(bytes, unused);
  } catch (const std::system_error& failure) {
    error = failure.code().value();
  }
  if (const auto refusal = first_refusal(1, error, deadline)) return {nullptr, refusal};
  return {std::move(segment), std::nullopt};
}

std::shared_ptr<Segment> JointMemory::segment_of(Reserved reserved, std::size_t bytes) const {
  if (!reserved.refusal) return std::move(reserved.segment);
  throw Error(core::no_memory_message(
      members_.failed_group(), {.rank = reserved.refusal->rank,
                                .bytes = bytes,
                                .memory = "shared memory",
                                .why = std::generic_category().message(reserved.refusal->error),
                                .advice = "a smaller size, fewer ranks on this host, or a higher memory limit"}));
}

// Tells the others how step 0 or 1 of reserve() went here, and learns how it went on every rank.
std::optional<JointMemory::Refusal> JointMemory::first_refusal(std::size_t step, int own_error,
                                                               base::Deadline& deadline) {
  const std::span<RankControl> here = memory_.control();
  here[static_cast<std::size_t>(members_.index)].memory_error[step].store(static_cast<std::uint32_t>(own_error));
  const auto error_of = [&](int index) {
    return static_cast<int>(here[static_cast<std::size_t>(index)].memory_error[step].load());
  };
  std::span<const GatheredWords> all;
  if (members_.has_hosts()) {
    all = hosts_.gather([&](int index) -> GatheredWords { return {static_cast<std::uint64_t>(error_of(index))}; },
                        deadline);
  } else {
    phases_.meet(deadline);
  }
  for (int rank = 0; rank < members_.who.size; ++rank) {
    const int error = all.empty() ? error_of(rank) : static_cast<int>(all[members_.layout.place_of(rank)][0]);
    if (error != 0) return Refusal{rank, error};
  }
  return std::nullopt;
}

void JointMemory::probe_peer_memory(base::Deadline& deadline) {
  const std::span<RankControl> here = memory_.control();
  RankControl& own = here[static_cast<std::size_t>(members_.index)];
  const PeerMemory::Probe probe = peer_memory_.own_probe();
  own.probe_address.store(probe.address);
  own.probe_word.store(probe.word);
  phases_.meet(deadline);
  std::vector<PeerMemory::Probe> probes;
  for (const RankControl& rank : here) probes.push_back({rank.probe_address.load(), rank.probe_word.load()});
  own.reads_all.store(peer_memory_.probe(std::move(probes)) ? 1 : 0);
  phases_.meet(deadline);
  peer_memory_.agree(
      std::all_of(here.begin(), here.end(), [](const RankControl& rank) { return rank.reads_all.load() == 1; }));
}

}  // namespace ddp::cpu_backend
