// The guardian's last word: tells the job's membership that nothing of the job is left on this node.
//
// Threads: the guardian's only.
#pragma once

#include "launcher/guardian/protocol.hpp"
#include "rendezvous/security/tls.hpp"

namespace ddp::launcher::guardian {

// Over a connection to each of them, in a second at most; whoever cannot be reached finds out by other ways. It is
// under TLS if `tls` is given, because the node key would let others speak for the node. Returns when all that could be
// reached have answered, and whether any of them knows the node.
bool say_farewell(const Farewell& farewell, const security::Tls* tls);

}  // namespace ddp::launcher::guardian
