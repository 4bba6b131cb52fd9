// Runs a store alone, until a signal ends it.
#pragma once

#include "rendezvous/daemon/command_line.hpp"

namespace ddp::rendezvous {

// Prints one line to stdout once clients can connect, and warnings to stderr. Returns the number of the signal that
// ended it: SIGINT, SIGTERM, or a SIGHUP that was not ignored at the start. Throws Error where it can't listen.
int serve_store(const ServeStore& options);

}  // namespace ddp::rendezvous
