// Runs the membership of many jobs, until a signal ends it.
#pragma once

#include "rendezvous/daemon/command_line.hpp"

namespace ddp::rendezvous {

// Prints one line to stdout once agents can connect, and what happens in its jobs to stderr. Returns the number of the
// signal that ended it. Throws Error where it can't listen.
int serve_jobs(const ServeJobs& options);

}  // namespace ddp::rendezvous
