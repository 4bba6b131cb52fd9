// The paragraph that a person reads when a job ended badly: what failed, where, and what to try. The same on every
// node.
#pragma once

#include <string>

#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

// Ends in a newline; empty where there is nothing to tell.
std::string job_summary(const rendezvous::FinishJob& verdict);

}  // namespace ddp::launcher
