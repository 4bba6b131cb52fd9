// What the workers of this node are told of a round, from what this node was told.
//
// Pure.
#pragma once

#include <string>

#include "launcher/command_line/launch_config.hpp"
#include "launcher/environment/worker_environment.hpp"
#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

Assignment assignment_of(const rendezvous::StartRound& round, const LaunchConfig& config, const std::string& run_id,
                         const std::string& master_address);

}  // namespace ddp::launcher
