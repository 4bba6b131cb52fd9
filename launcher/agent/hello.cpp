#include "launcher/agent/hello.hpp"

#include <algorithm>

#include "base/host_name.hpp"
#include "rendezvous/link/resolver.hpp"
#include "rendezvous/membership/membership.hpp"

namespace ddp::launcher {

rendezvous::Hello hello_of(const LaunchConfig& config, const NodeIdentity& node, int highest_round) {
  const auto& endpoint = config.rendezvous;
  rendezvous::Hello hello;
  hello.run_id = node.run_id;
  hello.node_key = node.node_key;
  hello.host_name = base::host_name();
  hello.node_rank = endpoint.node_rank;
  hello.nodes_min = endpoint.nodes_min;
  hello.nodes_max = endpoint.nodes_max;
  hello.workers = config.workers;
  hello.role = config.role;
  hello.local_address = endpoint.local_address;
  hello.started = node.started;
  hello.highest_round = std::min(highest_round, rendezvous::kRoundWithLogsMax);
  hello.restarts_max = config.restarts_max;
  hello.restart_window = config.restart_window;
  hello.join_timeout = endpoint.join_timeout;
  hello.last_call_timeout = endpoint.last_call_timeout;
  hello.heartbeat_timeout = endpoint.heartbeat_timeout;
  hello.grace = config.grace;
  hello.is_served_by_agent = endpoint.port_count > 1;
  hello.slurm_run = endpoint.slurm_run;
  hello.wants_report = !config.report_file.empty();
  hello.ended_nodes = node.ended_nodes;
  if (hello.nodes_max > 1) hello.addresses = rendezvous::own_addresses();
  hello.addresses.resize(std::min(hello.addresses.size(), rendezvous::kAddressesMax));
  return hello;
}

}  // namespace ddp::launcher
