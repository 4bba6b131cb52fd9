// A port for a test, which nothing else uses.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"

namespace ddp::test {

// Bound to a port of the loopback address, 0 for any; `number` stays as it is where the port is taken.
inline base::UniqueFd bound_socket(std::uint16_t port, std::uint16_t& number) {
  base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  socklen_t length = sizeof address;
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) return socket;  // it is taken
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  number = ntohs(address.sin_port);
  return socket;
}

// Below those that the kernel gives out by itself, and another one for each process: tests run side by side.
inline std::string free_port() {
  static unsigned candidate = static_cast<unsigned>(::getpid()) * 7;
  while (true) {
    const auto port = static_cast<std::uint16_t>(20'000 + candidate++ % 12'000);
    std::uint16_t number = 0;
    bound_socket(port, number);
    if (number == port) return std::to_string(port);
  }
}

}  // namespace ddp::test
