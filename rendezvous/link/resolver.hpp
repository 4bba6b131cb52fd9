// Looks up the addresses of a host without holding up the event loop, nor the end of the program.
#pragma once

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ddp::rendezvous {

struct Wanted {
  std::string host;
  std::uint16_t port = 0;
  bool may_be_slurm_node = false;  // whose name need not resolve: Slurm knows its address
};

struct Resolved {
  std::vector<sockaddr_storage> addresses;  // with the port, in the order in which they are to be tried
  std::optional<std::string> error;         // why there is none
  std::string slurm_address;                // of the node, where its name does not resolve: that does, or is numeric
};

// Calls `done` from the event loop, unless the returned handle is gone by then. getaddrinfo() cannot be stopped, so it
// runs on a thread of its own, which nobody waits for.
[[nodiscard]] std::shared_ptr<void> resolve(boost::asio::io_context& io, const Wanted& wanted,
                                            std::function<void(const Resolved&)> done);

// The addresses of this host's interfaces that are up, as texts: loopback last, link-local ones left out.
std::vector<std::string> own_addresses();

}  // namespace ddp::rendezvous
