// Plain sockets on loopback, for tests that speak bytes. No call blocks for more than kPatience.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/unique_fd.hpp"

namespace ddp::store {

constexpr std::chrono::seconds kPatience{60};  // longer than any machine needs; only a failing test waits for it

inline std::chrono::steady_clock::time_point patience() { return std::chrono::steady_clock::now() + kPatience; }

inline sockaddr_in loopback(std::uint16_t port, std::uint32_t address = INADDR_LOOPBACK) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_addr.s_addr = htonl(address);
  result.sin_port = htons(port);
  return result;
}

inline void require(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(std::string(what) + " failed, errno " + std::to_string(errno));
}

class RawSocket {
 public:
  explicit RawSocket(base::UniqueFd fd) : fd_(std::move(fd)) {
    const timeval limit{kPatience.count(), 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const int on = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  static RawSocket unconnected() { return RawSocket(base::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))); }
  static RawSocket connected(std::uint16_t port) {
    auto socket = unconnected();
    socket.connect(port);
    return socket;
  }
  void connect(std::uint16_t port) {
    const auto address = loopback(port);
    require(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "connect");
  }

  int fd() const { return fd_.get(); }
  void close() { fd_.reset(); }

  void send(const std::string& bytes) {  // what the peer no longer takes is dropped
    for (std::size_t sent = 0; sent < bytes.size();) {
      const auto count = ::send(fd_.get(), &bytes[sent], bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<std::size_t>(count);
    }
  }

  std::string receive(std::size_t bytes_max) {  // that many, or fewer where the peer hung up or kPatience passed
    std::string bytes(bytes_max, '\0');
    std::size_t received = 0;
    while (received < bytes_max) {
      const auto count = ::recv(fd_.get(), &bytes[received], bytes_max - received, 0);
      if (count <= 0) break;
      received += static_cast<std::size_t>(count);
    }
    bytes.resize(received);
    return bytes;
  }

  // Up to and with this text, or less where the peer hung up or kPatience passed.
  std::string receive_until(const std::string& text) {
    std::string received;
    while (!received.ends_with(text)) {
      char byte = 0;
      if (::recv(fd_.get(), &byte, 1, 0) <= 0) break;
      received += byte;
    }
    return received;
  }

  bool is_hung_up() {  // waits for it
    char byte;
    const auto count = ::recv(fd_.get(), &byte, 1, 0);
    return count == 0 || (count < 0 && errno == ECONNRESET);
  }

 private:
  base::UniqueFd fd_;
};

class RawListener {
 public:
  explicit RawListener(bool listening = true) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    auto address = loopback(0);
    socklen_t length = sizeof address;
    require(::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0, "bind");
    require(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0, "getsockname");
    port_ = ntohs(address.sin_port);
    if (listening) require(::listen(fd_.get(), 16) == 0, "listen");
    const timeval limit{kPatience.count(), 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }

  int fd() const { return fd_.get(); }
  std::uint16_t port() const { return port_; }
  RawSocket accept() {
    base::UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    require(static_cast<bool>(fd), "accept");
    return RawSocket(std::move(fd));
  }

 private:
  base::UniqueFd fd_;
  std::uint16_t port_ = 0;
};

}  // namespace ddp::store
