// The address of a node as Slurm's configuration has it (NodeAddr), for clusters whose node names do not resolve.
//
// Threads: any. ask_node_address() blocks, and starts a process.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace ddp::slurm {

// The NodeAddr in what `scontrol -o show node NAME` prints of one node; empty where there is none. Pure.
std::optional<std::string> node_address_in(std::string_view scontrol_output);

struct NodeAddress {
  std::string address;  // a name or an address; empty where there is none
  std::string error;    // why
};

// Asks scontrol, found by PATH. It is killed at the end of `limit`, and has always ended when this returns.
NodeAddress ask_node_address(const std::string& node, std::chrono::milliseconds limit);

}  // namespace ddp::slurm
