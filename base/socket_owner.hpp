// Which user owns the socket at the other end of a connection from this host.
//
// The kernel is asked for exactly that socket (one sock_diag query, no search through all sockets).
//
// Threads: one caller at a time.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "base/address.hpp"
#include "base/unique_fd.hpp"

namespace ddp::base {

// One end of a connection as the kernel's sockets know it: an IPv4 connection of an IPv6 socket counts as IPv4.
struct SocketEnd {
  Address address;
  std::uint16_t port_be = 0;      // in network order
  std::uint32_t scope_index = 0;  // the interface of a link-local IPv6 address
};

// Requires an address of family AF_INET or AF_INET6.
SocketEnd socket_end_of(const sockaddr_storage& address);

class SocketOwners {
 public:
  SocketOwners();

  // The user whose process holds the socket from `peer` to `local`; empty where the kernel knows no such socket, or
  // nobody holds it any more. Both matter: a look-up that finds no connection falls back to a listening socket on the
  // same port, and a socket whose process has closed it is reported as root's.
  std::optional<uid_t> owner_of(const SocketEnd& peer, const SocketEnd& local) const;

 private:
  UniqueFd sock_diag_;  // open from the start, so that it is there when descriptors have run out
};

}  // namespace ddp::base
