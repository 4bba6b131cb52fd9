#include "worker_runtime/core/failure/failure_message.hpp"

#include <system_error>

#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::core {

namespace {

bool is_of_pair(const Fingerprint& call) {
  return call.kind == CollectiveKind::send || call.kind == CollectiveKind::receive;
}

std::string number_of(const Fingerprint& call, std::uint64_t number) {
  return (is_of_pair(call) ? "message " : "call ") + std::to_string(number);
}

std::string numbered(const Fingerprint& call, std::uint64_t number) {
  if (is_of_pair(call)) return describe(call) + ", " + number_of(call, number);
  return number == 0 ? "the start of the group" : describe(call) + ", " + number_of(call, number);
}

std::string where(const FailedCall& failed) {
  return "\nwhere: rank " + std::to_string(failed.who.rank) + " of " + std::to_string(failed.who.size) + ", pid " +
         std::to_string(failed.pid) + ", round " + to_string(failed.who.round);
}

std::string name_of(const RankState& rank) {
  const std::string name = "rank " + std::to_string(rank.rank);
  return rank.pid == 0 ? name : name + " (pid " + std::to_string(rank.pid) + ")";
}

std::string fate(const RankState& rank) {
  const std::string name = name_of(rank) + " ";
  switch (rank.presence) {
    case Presence::here: return name + "ended";
    case Presence::left: return name + "has left the group";
    case Presence::aborted: return name + "aborted the group";
    case Presence::gave_up: return name + "gave up on the group after a failure of its own";
    case Presence::unreachable: return name + "ended, or can't be reached any more";
    case Presence::protocol_error: return name + "sent what no rank of this group sends";
  }
  return name;
}

std::string last_words(const RankState& rank, std::uint64_t awaited) {
  const std::string name = name_of(rank);
  if (rank.calls == 0) return name + " has called nothing yet";
  const std::string call = numbered(rank.last_call, rank.calls);
  return rank.calls == awaited ? name + " stopped in the middle of " + call : name + " last called " + call;
}

std::vector<int> ranks_of(const std::vector<RankState>& states) {
  std::vector<int> ranks;
  for (const RankState& state : states) ranks.push_back(state.rank);
  return ranks;
}

}  // namespace

std::string lost_message(const FailedCall& failed, const std::vector<RankState>& lost) {
  std::string text;
  for (const RankState& rank : lost) text += (text.empty() ? "" : ", ") + fate(rank);
  return text + "; this rank needed " + (lost.size() == 1 ? "it" : "them") + " in " +
         numbered(failed.call, failed.number) + where(failed) + "\ntry:   look at the end of the output of " +
         process_group::list_ranks(ranks_of(lost)) + "; `dmesg | grep -i oom` tells whether memory ran out";
}

std::string timeout_message(const FailedCall& failed, const std::vector<RankState>& missing,
                            std::chrono::milliseconds waited) {
  std::string text = process_group::list_ranks(ranks_of(missing)) + " did not come to " +
                     numbered(failed.call, failed.number) + ", within " + std::to_string(waited.count()) + " ms";
  for (const RankState& rank : missing) text += "; " + last_words(rank, failed.number);
  return text + where(failed) +
         "\ntry:   see what these ranks are doing (a debugger shows where they are); give a longer timeout if they are "
         "only slow";
}

std::string pair_timeout_message(const FailedCall& failed, const std::vector<RankState>& peers, bool has_met,
                                 std::chrono::milliseconds waited) {
  std::string text = process_group::list_ranks(ranks_of(peers)) + " did not come to " + (has_met ? "the end of " : "") +
                     (peers.size() == 1 ? "" : "what this rank has called with them, beginning with ") +
                     numbered(failed.call, failed.number) + ", within " + std::to_string(waited.count()) + " ms";
  for (const RankState& peer : peers) {
    if (!peer.has_told) continue;
    text += "; " + name_of(peer);
    text += peer.calls == 0 ? " has called no collective yet"
                            : "'s last collective is " + numbered(peer.last_call, peer.calls);
  }
  return text + where(failed) + "\ntry:   see what " +
         (peers.size() == 1 ? "this rank is doing (a debugger shows where it is)"
                            : "these ranks are doing (a debugger shows where they are)") +
         "; two ranks that send to each other, each before it receives, wait in vain, unless both calls are in one "
         "coalesce()";
}

std::string mismatch_message(const FailedCall& failed, const std::string& difference) {
  const std::string text = difference + " (" + number_of(failed.call, failed.number) + ")" + where(failed);
  if (is_of_pair(failed.call)) return text + "\ntry:   let the sender and the receiver name the same type and count";
  return text + "\ntry:   let every rank call the same collectives in the same order, with the same type and count";
}

std::string no_memory_message(const FailedCall& failed, std::size_t bytes, int rank, int error_number) {
  return "rank " + std::to_string(rank) + " can't have " + std::to_string(bytes) +
         " bytes of shared memory: " + std::generic_category().message(error_number) + where(failed) +
         "\ntry:   a smaller size, fewer ranks on this host, or a higher memory limit";
}

}  // namespace ddp::core
