// What this node says of itself when it joins its job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/command_line/launch_config.hpp"
#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

struct NodeIdentity {
  std::string run_id;
  std::string node_key;
  std::uint64_t started = 0;                            // Unix seconds
  std::vector<rendezvous::EndedNode> ended_nodes = {};  // as Hello has them
};

// highest_round: of which this host has log files; -1: none. Asks the kernel for this host's name and addresses.
rendezvous::Hello hello_of(const LaunchConfig& config, const NodeIdentity& node, int highest_round);

}  // namespace ddp::launcher
