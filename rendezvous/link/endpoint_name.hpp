// The rendezvous endpoint as the user named it.
#pragma once

#include <cstdint>
#include <string>

namespace ddp::rendezvous {

struct EndpointName {
  std::string host;
  std::uint16_t port = 0;
  int port_count = 1;  // the endpoint is at one of so many ports, from `port` on
  bool may_be_slurm_node = false;
};

// "node0:29400", "[fd00::1]:29400", "node0:29400-29407"
std::string text_of(const EndpointName& endpoint);

// "29400", "29400-29407"
std::string range_of_ports(int first, int last);

}  // namespace ddp::rendezvous
