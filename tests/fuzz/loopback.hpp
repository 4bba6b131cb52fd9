// Connections of a fuzz target to what listens in this process, on 127.0.0.1.
#pragma once

#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdint>
#include <string_view>

#include "base/unique_fd.hpp"
#include "tests/fuzz/targets.hpp"

namespace ddp::fuzz {

inline sockaddr_in loopback_address(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  address.sin_port = ::htons(port);
  return address;
}

// Its end is a reset, so that no port is taken for a minute by each input.
inline base::UniqueFd connect_to_loopback(std::uint16_t port) {
  base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = loopback_address(port);
  const linger reset{1, 0};
  require(::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0 &&
              ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
          "a connection within this process");
  return socket;
}

// Returns when the bytes are where the other end reads them. The other end may have closed the connection.
inline void send_to_loopback(const base::UniqueFd& socket, std::string_view bytes) {
  if (::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return;
  int on_the_way = 1;
  while (on_the_way != 0 && ::ioctl(socket.get(), SIOCOUTQ, &on_the_way) == 0) {
    pollfd polled{socket.get(), 0, 0};
    if (::poll(&polled, 1, 0) > 0) return;  // it is over
    if (on_the_way != 0) ::sched_yield();
  }
}

}  // namespace ddp::fuzz
