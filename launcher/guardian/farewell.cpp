#include "launcher/guardian/farewell.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>

#include "rendezvous/io/address.hpp"
#include "rendezvous/io/host_and_port.hpp"
#include "rendezvous/io/unique_fd.hpp"

namespace ddp::launcher::guardian {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLimit{1};

bool waits_for(int socket, short what, Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd wait{socket, what, 0};
  return ::poll(&wait, 1, static_cast<int>(left > 0 ? left : 0)) == 1;
}

io::UniqueFd connected_to(const std::string& address, std::uint16_t port, Clock::time_point deadline) {
  const auto numeric = io::parse_address(address);
  if (!numeric) return {};
  const auto target = io::socket_address(*numeric, port);
  io::UniqueFd socket(::socket(target.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&target), io::length_of(target)) != 0 &&
                  errno != EINPROGRESS))
    return {};
  return waits_for(socket.get(), POLLOUT, deadline) ? std::move(socket) : io::UniqueFd();
}

}  // namespace

bool say_farewell(const Farewell& farewell) {
  if (farewell.address.empty()) return false;
  const auto deadline = Clock::now() + kLimit;
  const auto socket = connected_to(farewell.address, farewell.port, deadline);
  if (!socket) return false;
  const auto request = "POST /v1/farewell/" + farewell.node_key +
                       " HTTP/1.1\r\nHost: " + io::host_and_port(farewell.address, farewell.port) +
                       "\r\nContent-Length: 0\r\n\r\n";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
    return false;
  constexpr std::string_view kKnown = "HTTP/1.1 200";
  char answer[kKnown.size()] = {};
  std::size_t length = 0;
  while (length < sizeof answer && waits_for(socket.get(), POLLIN, deadline)) {
    const auto count = ::recv(socket.get(), answer + length, sizeof answer - length, 0);
    if (count <= 0) break;
    length += static_cast<std::size_t>(count);
  }
  return std::string_view(answer, length) == kKnown;
}

}  // namespace ddp::launcher::guardian
