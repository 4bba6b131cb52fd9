// Where and how the nodes of a job meet: --nnodes, --node-rank, --standalone, --master-*, --rdzv-* and their like.
#pragma once

#include <string>
#include <vector>

#include "launcher/command_line/launch_config.hpp"

namespace ddp::launcher {

// Adds to `notices` what was chosen for the user and what has no effect. Throws UsageError.
RendezvousConfig rendezvous_of(const GivenOptions& given, std::vector<std::string>& notices);

}  // namespace ddp::launcher
