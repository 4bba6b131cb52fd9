#include "worker_runtime/cpu_backend/group.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace ddp::cpu_backend {

// The sends and receives among some calls, all at once.
void Group::exchange_in_pairs(std::span<const Collective> calls, io::Deadline& deadline) {
  std::vector<Collective> pairs;
  std::vector<int> peers;
  for (const Collective& call : calls) {
    if (!is_pair_call(call.kind)) continue;
    pairs.push_back(call);
    peers.push_back(layout_.index_of(call.root));
  }
  if (pairs.empty()) return;
  const PairEnd end = pairs_.run(pairs, peers, deadline);
  if (end.kind != PairEnd::Kind::complete) fail_pair(pairs[end.call], end, deadline);
}

// Between two ranks only: the others do not matter, and are not told.
void Group::fail_pair(const Collective& call, const PairEnd& end, const io::Deadline& deadline) {
  const FailedCall failed{who_, ::getpid(), end.number, fingerprint_of(call)};
  const int peer = call.root;
  const RankState state = state_of(peer);
  is_abort_elsewhere_ = end.kind == PairEnd::Kind::lost && state.presence == Presence::aborted;
  switch (end.kind) {
    case PairEnd::Kind::lost: throw RankFailure(lost_message(failed, {state}), {peer});
    case PairEnd::Kind::timed_out:
      throw TimeoutError(pair_timeout_message(failed, state, end.has_met, deadline.full_time()), {peer});
    case PairEnd::Kind::mismatch: {
      const std::string own = "rank " + std::to_string(who_.rank) + " called " + describe(failed.call);
      const std::string theirs = "rank " + std::to_string(peer) + " called " + describe(end.theirs);
      throw MismatchError(mismatch_message(failed, who_.rank < peer ? own + ", " + theirs : theirs + ", " + own));
    }
    case PairEnd::Kind::interrupted:
    case PairEnd::Kind::complete: break;
  }
  throw_unusable();
}

}  // namespace ddp::cpu_backend
