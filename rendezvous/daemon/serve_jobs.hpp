// Runs the membership of many jobs, until a signal ends it.
#pragma once

#include <optional>
#include <string>

#include "rendezvous/daemon/command_line.hpp"

namespace ddp::rendezvous {

// Prints one line to stdout once agents can connect, and what happens in its jobs to stderr. Returns the number of the
// signal that ended it. `token_variable` is the value of DDPRUN_TOKEN. Throws Error where it can't listen.
int serve_jobs(const ServeJobs& options, const std::optional<std::string>& token_variable);

}  // namespace ddp::rendezvous
