// The addresses of a host: for those who bring a thread of their own to the resolver, and for those who may wait.
//
// Threads: any.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/cut.hpp"

namespace ddp::base {

struct SocketAddresses {
  std::vector<sockaddr_storage> addresses;  // with the port, in the order in which they are to be tried, 16 at most
  std::string error;                        // why there is none
};

// As getaddrinfo() has them, with flags of its own, but with one loopback address. Blocks, and can't be interrupted.
SocketAddresses look_up(const std::string& host, std::uint16_t port, int flags = 0);

// Removes ::1 if there is an IPv4 loopback address too. At `localhost` ddprun and libddp listen on 127.0.0.1, and
// another user of the host may listen on ::1 at the same port.
void keep_one_loopback(std::vector<sockaddr_storage>& addresses);

struct HostAddresses {
  std::vector<std::string> addresses;  // as getnameinfo() writes them, in the order in which they are to be tried
  std::string error;                   // why there is none
};

// Of a name, or of a text that is an address already. A resolver can take longer than any deadline, and can't be
// interrupted: it runs in a thread of its own, which is left to itself at the end. Throws AbortedError where `cut`,
// unless null, is cut.
HostAddresses addresses_of_host(const std::string& host, std::chrono::steady_clock::time_point end, const Cut* cut);

}  // namespace ddp::base
