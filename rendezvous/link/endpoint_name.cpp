#include "rendezvous/link/endpoint_name.hpp"

#include "base/host_and_port.hpp"

namespace ddp::rendezvous {

std::string text_of(const EndpointName& endpoint) {
  return base::host_and_port(endpoint.host, range_of_ports(endpoint.port, endpoint.port + endpoint.port_count - 1));
}

std::string range_of_ports(int first, int last) {
  return std::to_string(first) + (first == last ? "" : "-" + std::to_string(last));
}

}  // namespace ddp::rendezvous
