// The address of a node as Slurm's configuration has it (NodeAddr), for clusters whose node names do not resolve.
//
// Threads: any. ask_node_address() and ask_node_addresses() block, and start a process.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::slurm {

// The NodeAddr in what `scontrol -o show node NAME` prints of one node; empty where there is none. Pure.
std::optional<std::string> node_address_in(std::string_view scontrol_output);

struct NodeAddress {
  std::string address;  // a name or an address; empty where there is none
  std::string error;    // why
};

// Asks scontrol, found by PATH. It is killed at the end of `limit`, and has always ended when this returns.
NodeAddress ask_node_address(const std::string& node, std::chrono::milliseconds limit);

// The same of many nodes at once.
std::map<std::string, std::string> node_addresses_in(std::string_view scontrol_output);

struct NodeAddresses {
  std::map<std::string, std::string> of_node;  // those that Slurm has one for
  std::string error;                           // why there is none at all
};
NodeAddresses ask_node_addresses(const std::vector<std::string>& nodes, std::chrono::milliseconds limit);

}  // namespace ddp::slurm
