// In which order a node takes in what has arrived at the same time.
//
// Pure.
#pragma once

#include <variant>

#include "launcher/node/node_core.hpp"

namespace ddp::launcher {

// Whether the node first takes in all that its workers have said. Their words may be why a worker has ended, and at a
// stop membership has to know which ranks they miss.
inline bool comes_after_words_of_workers(const NodeCore::Event& event) {
  if (const auto* changed = std::get_if<NodeCore::WorkersChanged>(&event)) return has_any_ended(*changed);
  const auto* said = std::get_if<NodeCore::MembershipSaid>(&event);
  return said != nullptr && std::holds_alternative<rendezvous::StopRound>(said->message);
}

}  // namespace ddp::launcher
