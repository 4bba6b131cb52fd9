// Which nodes take part in the next round, and what its members are told when it begins: the store, and which ranks
// each node has.
//
// Pure.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "rendezvous/membership/limits.hpp"
#include "rendezvous/membership/messages.hpp"
#include "rendezvous/membership/nodes.hpp"

namespace ddp::rendezvous {

// The nodes that can take part, in the order of their ids. Hosts that ended too many rounds are left out if enough
// others are there, and one of these has the newest work of the job's workers.
std::vector<NodeId> candidates(const Nodes& nodes, const CoolDown& cool_down, int nodes_min, TimePoint now);

// Those of the candidates that the round has, in the order of their new group ranks.
std::vector<NodeId> members_of_next_round(const Nodes& nodes, const std::vector<NodeId>& candidates, int nodes_max);

// To the first member, which opens the store for the addresses of the others. The last message has is_last.
// Requires at least one member; `members` is in the order of group ranks.
std::vector<OpenStore> store_requests(const RoundId& round, const Nodes& nodes, const std::vector<NodeId>& members);

// When the job began, in Unix seconds: as one of the members was told in a round before, else when the first of them
// was started. Requires at least one member.
std::uint64_t job_start(const Nodes& nodes, const std::vector<NodeId>& members);

// Calls `tell` for each member, in the order of group ranks. `start` has what nodes do not say: the round, its nonce,
// the store's port, the restarts and the reason.
void tell_starts(StartRound start, const Nodes& nodes, const std::vector<NodeId>& members,
                 const std::function<void(NodeId, const StartRound&)>& tell);

// The first of the ranks that a member has. Where another membership has begun the round, that is known as long as all
// nodes before it are here.
std::optional<int> rank_first_of(const Node& member, const Nodes& nodes);

// What a member says of a failure, corrected: a node can speak of its own workers only.
FailureReport own_failure(const Node& member, const Nodes& nodes, FailureReport failure);

}  // namespace ddp::rendezvous
