#include "tests/fake_gpu/nccl_sockets.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace ddp::fake_gpu {

namespace {

constexpr int kBacklog = 1024;  // more ranks than a test has

struct Address {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

// Begins with a zero byte: no file.
Address abstract(const std::string& name) {
  Address result;
  result.address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof(result.address.sun_path) - 1);
  std::memcpy(result.address.sun_path + 1, name.data(), length);
  result.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return result;
}

base::UniqueFd make_socket() {
  base::UniqueFd made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) throw std::system_error(errno, std::generic_category(), "fake NCCL: socket");
  return made;
}

const sockaddr* plain(const Address& address) { return reinterpret_cast<const sockaddr*>(&address.address); }

}  // namespace

base::UniqueFd listen_at(const std::string& address) {
  base::UniqueFd listener = make_socket();
  const Address bound = abstract(address);
  if (::bind(listener.get(), plain(bound), bound.bytes) != 0 || ::listen(listener.get(), kBacklog) != 0)
    throw std::system_error(errno, std::generic_category(), "fake NCCL: listen at " + address);
  return listener;
}

std::optional<base::UniqueFd> connect_to(const std::string& address) {
  base::UniqueFd socket = make_socket();
  const Address peer = abstract(address);
  if (::connect(socket.get(), plain(peer), peer.bytes) != 0) return std::nullopt;
  return socket;
}

std::optional<std::size_t> wait_readable(const std::vector<int>& sockets, const base::Cut& abort) {
  std::vector<pollfd> polled{{abort.descriptor(), POLLIN, 0}};
  for (const int socket : sockets) polled.push_back({socket, POLLIN, 0});
  while (::poll(polled.data(), polled.size(), -1) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "fake NCCL: poll");
  }
  if (polled[0].revents != 0) return std::nullopt;
  const auto ready =
      std::find_if(polled.begin() + 1, polled.end(), [](const pollfd& each) { return each.revents != 0; });
  return static_cast<std::size_t>(ready - polled.begin() - 1);
}

Outcome accept_one(int listener, const base::Cut& abort, base::UniqueFd& accepted) {
  if (!wait_readable({listener}, abort)) return Outcome::aborted;
  accepted.reset(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  return accepted ? Outcome::done : Outcome::peer_gone;
}

Outcome read_all(int socket, void* bytes, std::size_t count, const base::Cut& abort) {
  auto* at = static_cast<char*>(bytes);
  while (count > 0) {
    if (!wait_readable({socket}, abort)) return Outcome::aborted;
    const ssize_t got = ::recv(socket, at, count, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return Outcome::peer_gone;
    at += got;
    count -= static_cast<std::size_t>(got);
  }
  return Outcome::done;
}

bool write_small(int socket, const void* bytes, std::size_t count) {
  return ::send(socket, bytes, count, MSG_NOSIGNAL) == static_cast<ssize_t>(count);
}

bool wait_abort(const base::Cut& abort, int milliseconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  for (;;) {
    pollfd polled{abort.descriptor(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    const int limit = milliseconds < 0 ? -1 : static_cast<int>(std::max<long>(left, 0));
    if (::poll(&polled, 1, limit) >= 0) return polled.revents != 0;
  }
}

}  // namespace ddp::fake_gpu
