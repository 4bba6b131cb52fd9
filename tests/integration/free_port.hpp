// Ports for a test, which nothing else uses. Below those that the kernel gives out by itself: tests run side by side,
// and each connection of another one has a port of that range.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
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
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return socket;  // it is taken
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  number = ntohs(address.sin_port);
  return socket;
}

// False where the port is taken, or another test has it: between the choice of a port and the moment at which a program
// listens there, nothing else would tell. This process, and what it forks, has it until its end, by the name of a
// socket.
inline bool reserve_port(std::uint16_t port) {
  std::uint16_t number = 0;
  bound_socket(port, number);
  if (number != port) return false;
  base::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto name = "ddp_test_port_" + std::to_string(port);
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);  // in no file system
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return errno != EADDRINUSE;
  static_cast<void>(socket.release());
  return true;
}

constexpr unsigned kFirstTestPort = 20'000, kTestPorts = 12'000;

inline std::string free_port() {
  static unsigned candidate = static_cast<unsigned>(::getpid()) * 7;
  while (true) {
    const auto port = static_cast<std::uint16_t>(kFirstTestPort + candidate++ % kTestPorts);
    if (reserve_port(port)) return std::to_string(port);
  }
}

// The ports of a step of Slurm's, which follow from the job's number.
constexpr int kPortsOfStep = 8;
constexpr int kPortGroups = static_cast<int>(kTestPorts) / kPortsOfStep;  // so many jobs have ports of their own

inline int first_port_of(int job) { return static_cast<int>(kFirstTestPort) + kPortsOfStep * (job % kPortGroups); }

// A job's number whose ports nobody has.
inline int free_job() {
  static int candidate = static_cast<int>(::getpid()) * 3;
  while (true) {
    const int first = first_port_of(++candidate);
    bool is_free = true;
    for (int port = first; port < first + kPortsOfStep && is_free; ++port)
      is_free = reserve_port(static_cast<std::uint16_t>(port));
    if (is_free) return candidate;
  }
}

}  // namespace ddp::test
