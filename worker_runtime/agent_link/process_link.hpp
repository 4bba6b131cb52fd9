// The one link of this process to its agent. It is opened when the process first takes part in a job and stays open
// until the process has ended: it is never destroyed, so that its thread finds all it needs however the process ends.
//
// Threads: any.
// Fork:    a forked child has none, whatever its parent has.
#pragma once

#include "worker_runtime/agent_link/agent_link.hpp"

namespace ddp::agent_link {

// Null where no agent started this program. Throws Error where the link can't be opened.
AgentLink* open_process_link();

// Null also where nobody has opened it yet.
AgentLink* process_link();

}  // namespace ddp::agent_link
