// The guardian's last word: tells the job's membership that nothing of the job is left on this node.
//
// Threads: the guardian's only.
#pragma once

#include "launcher/guardian/protocol.hpp"
#include "rendezvous/security/tls.hpp"

namespace ddp::launcher::guardian {

// Over a connection of its own, in a second at most; whoever cannot be reached finds out by other ways. It is under TLS
// if `tls` is given, because the node key would let others speak for the node. Returns when membership has answered,
// and whether it knows the node.
bool say_farewell(const Farewell& farewell, const security::Tls* tls);

}  // namespace ddp::launcher::guardian
