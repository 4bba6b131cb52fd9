#include "worker_runtime/backends/cpu/group/joint_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "worker_runtime/core/failure/failure_message.hpp"

namespace ddp::cpu_backend {

namespace {

bool has_room(const JointMemory::Refusal& refusal) { return refusal.needed_bytes <= refusal.available_bytes; }

const char* advice_for(const JointMemory::Refusal& refusal) {
  switch (refusal.error) {
    case EFBIG: return "`ulimit -f unlimited` where the job is started, or a smaller size";
    case EOVERFLOW: return "a smaller size; is it computed from a negative or an uninitialized number?";
    default: break;
  }
  if (refusal.is_by_system && has_room(refusal)) {
    return "compare `ulimit -v` with what the process has mapped, and look at vm.overcommit_memory; or a smaller size";
  }
  return "a smaller size, fewer ranks on this host, or a higher memory limit";
}

}  // namespace

JointMemory::Reserved JointMemory::reserve(std::size_t bytes, base::Deadline& deadline, Gap unused) {
  SharedMemory::Room room = memory_.room_for(bytes, unused);
  if (const auto refusal = first_refusal(0, room, deadline)) return {nullptr, refusal};
  std::shared_ptr<Segment> segment;
  try {
    segment = memory_.reserve(bytes, unused);
  } catch (const std::system_error& failure) {
    room = memory_.room_for(bytes, unused);  // others may have taken some since
    room.error = failure.code().value();
  }
  if (const auto refusal = first_refusal(1, room, deadline)) return {nullptr, refusal};
  return {std::move(segment), std::nullopt};
}

std::shared_ptr<Segment> JointMemory::segment_of(Reserved reserved, std::size_t bytes) const {
  if (!reserved.refusal) return std::move(reserved.segment);
  throw Error(core::no_memory_message(members_.failed_group(), {.rank = reserved.refusal->rank,
                                                                .bytes = bytes,
                                                                .memory = "shared memory",
                                                                .why = reason_of(*reserved.refusal),
                                                                .advice = advice_for(*reserved.refusal)}));
}

std::string JointMemory::reason_of(const Refusal& refusal) const {
  const std::string text = std::generic_category().message(refusal.error);
  if (refusal.error == EFBIG) {
    return text + ": it is part of a file that the ranks of a host share, and RLIMIT_FSIZE limits the size of files";
  }
  if (refusal.error == EOVERFLOW) {
    return text + ": it is part of a file that the ranks of a host share, and no file can be that large";
  }
  if (refusal.error != ENOMEM) return text;
  const std::size_t ranks = members_.layout.ranks_of(members_.layout.host_of(refusal.rank)).size();
  const std::string room = ": the ranks of its host (" + std::to_string(ranks) + ") need " +
                           std::to_string(refusal.needed_bytes) + " bytes together, and " +
                           std::to_string(refusal.available_bytes) + " are available";
  return text + room + (refusal.is_by_system && has_room(refusal) ? ", but the system refuses them" : "");
}

// Tells the others how step 0 or 1 of reserve() went here, and learns how it went on every rank.
std::optional<JointMemory::Refusal> JointMemory::first_refusal(std::size_t step, const SharedMemory::Room& own,
                                                               base::Deadline& deadline) {
  const std::span<RankControl> here = memory_.control();
  RankControl& control = here[static_cast<std::size_t>(members_.index)];
  control.memory_error[step].store(static_cast<std::uint32_t>(own.error));
  control.memory_room[step][0].store(own.needed_bytes);
  control.memory_room[step][1].store(own.available_bytes);
  const auto words_of = [&](int index) -> GatheredWords {
    const RankControl& its = here[static_cast<std::size_t>(index)];
    return {its.memory_error[step].load(), its.memory_room[step][0].load(), its.memory_room[step][1].load()};
  };
  std::span<const GatheredWords> all;
  if (members_.has_hosts()) {
    all = hosts_.gather(words_of, deadline);
  } else {
    phases_.meet(deadline);
  }
  for (int rank = 0; rank < members_.who.size; ++rank) {
    const GatheredWords its = all.empty() ? words_of(rank) : all[members_.layout.place_of(rank)];
    if (its[0] != 0) return Refusal{rank, static_cast<int>(its[0]), its[1], its[2], step == 1};
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
