// Whether a node may take part in the job at all, by what it says when it comes.
//
// Pure.
#pragma once

#include <optional>
#include <string>

#include "rendezvous/membership/messages.hpp"
#include "rendezvous/membership/nodes.hpp"
#include "rendezvous/membership/options.hpp"

namespace ddp::rendezvous {

struct Admission {
  const MembershipOptions& options;
  const Nodes& nodes;
  bool has_begun = false;  // a round, here or by adoption

  std::optional<Refused> other_job(const Hello& hello) const;  // where it is not this one that the node wants to join
  std::optional<Refused> objection(const Hello& hello) const;
  bool is_possible(const Hello& hello) const;   // the round that the node says it has
  int nodes_max_for(const Hello& hello) const;  // of the job, as far as this node can tell

  // Whoever was left behind states its round too, but does not claim that it goes on.
  static bool claims_round(const Hello& hello) { return hello.held && !hello.held->is_left_behind; }
  // A daemon's settings are those of the node that comes first, which may be anybody's. A round comes with its own.
  bool follows_claims() const { return !has_begun && !options.greater_part_only; }
};

// For a node with a round that the nodes at the endpoint do not know. The round may be true nevertheless, and not be
// noticed here yet. So the node may come again, or look for the others.
Refused refusal_of_round(const std::string& host_name, const Held& held);

}  // namespace ddp::rendezvous
