// Connections between the hosts of a group: addresses, a listener, connecting, and bytes with a deadline.
//
// Every connection opens with a RankHello that carries the group's secret and its name, which holds the round; one that
// does not is closed without an answer. Sockets are non-blocking, close-on-exec, and closed in a forked child: a child
// that kept one open would hide its parent's death from the other hosts.
//
// Threads: any, one at a time for each socket.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"

namespace ddp::core {

// A TCP socket, closed in forked children too.
class TcpSocket {
 public:
  TcpSocket() = default;
  explicit TcpSocket(base::UniqueFd fd);
  TcpSocket(TcpSocket&& other) noexcept = default;
  TcpSocket& operator=(TcpSocket&& other) noexcept;
  ~TcpSocket();

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void reset();

 private:
  base::UniqueFd fd_;
};

struct Endpoint {
  std::string address;  // numeric; empty: the host at which the reader reaches the store
  std::uint16_t port = 0;
};

// Where this process listens, and what it tells others of it. The addresses are numeric.
struct NetworkOptions {
  std::string interface {};                  // DDP_SOCKET_IFNAME; empty: the one that leads to the store
  std::uint16_t port_min = 0, port_max = 0;  // DDPRUN_PORT_RANGE; 0: any free port
  std::string own_address{};                 // of this process, as the store sees it
  std::string store_address{};
};

// The same with the addresses of both ends of a connection to the store. Throws std::system_error.
NetworkOptions with_addresses_of(int store_socket, NetworkOptions options);

// The same where there is no such connection: with the address from which this host reaches others by default, or
// loopback if it has no route to others.
NetworkOptions with_addresses_of_host(NetworkOptions options);

// What a socket is connected to. Throws std::system_error.
Endpoint peer_of(int socket);

// Throws Error where the interface has no address, or no port of the range is free.
struct Listener {
  TcpSocket socket;
  Endpoint endpoint;
};
Listener listen_tcp(const NetworkOptions& options);

struct RankHello {
  enum class Purpose : std::uint32_t { follower, data, news, pair };

  std::uint32_t magic = 0x64647034;  // "ddp4"; a change of anything on the wire changes it
  Purpose purpose = Purpose::follower;
  std::int32_t rank = 0;
  std::int32_t size = 0;          // of the group, as the caller knows it
  std::array<char, 32> secret{};  // of the group, random, from the store
  std::array<char, 128> group{};  // its name in the store, which holds the round
  std::array<char, 256> host{};   // identity of the caller's host, from a follower
};

// Text into a field of a message, cut to what fits; the last byte stays 0.
template <std::size_t kBytes>
void put_text(std::array<char, kBytes>& field, const std::string& text) {
  field.fill(0);
  text.copy(field.data(), kBytes - 1);
}
template <std::size_t kBytes>
std::string text_in(const std::array<char, kBytes>& field) {
  return std::string(field.data(), ::strnlen(field.data(), kBytes));
}

// Accepts connections whose RankHello carries the secret. Any other connection costs at most a descriptor for a while.
class Acceptor {
 public:
  // Only `magic`, `secret` and `group` of `expected` count.
  Acceptor(TcpSocket listener, const RankHello& expected) : listener_(std::move(listener)), expected_(expected) {}

  struct Arrival {
    RankHello hello;
    TcpSocket socket;
  };

  // Appends what to poll for. take() returns the connections whose RankHello has come since, given the polled entries.
  void add_to(std::vector<pollfd>& polled) const;
  std::vector<Arrival> take(std::span<const pollfd> polled);

  // Accepts nothing more: closes the listener, and the connections whose RankHello has not come.
  void close();

 private:
  struct Unidentified {
    TcpSocket socket;
    RankHello hello;
    std::size_t received = 0;  // bytes of it
  };
  enum class Received { part, hello, protocol_error };
  Received receive_hello(Unidentified& connection) const;

  TcpSocket listener_;
  RankHello expected_;
  std::vector<Unidentified> unidentified_;
};

// Connected, with the RankHello sent. Throws std::system_error; ETIMEDOUT at the deadline.
TcpSocket connect_tcp(const Endpoint& endpoint, const RankHello& hello, base::Deadline& deadline);

// The kernel asks a silent host for a sign of life, and gives the connection up after `silence_max`, but for one with
// data on its way: the kernel of a peer that reads nothing for long is not silent. Throw std::system_error.
void expect_signs_of_life(int socket, std::chrono::seconds silence_max);
// The same, whatever is on its way: for a peer that always reads.
void expect_progress(int socket, std::chrono::seconds silence_max);

// The peer closed the connection, or it broke.
class ConnectionLost : public std::exception {
 public:
  const char* what() const noexcept override { return "the connection was closed"; }
};

// All of it. Each returns false at the deadline, and throws ConnectionLost.
[[nodiscard]] bool send_all(int socket, std::span<const std::byte> bytes, base::Deadline& deadline);
[[nodiscard]] bool receive_all(int socket, std::span<std::byte> bytes, base::Deadline& deadline);

// As much as goes at once; 0 where nothing does. Throw ConnectionLost.
std::size_t send_some(int socket, std::span<const std::byte> bytes);
std::size_t receive_some(int socket, std::span<std::byte> bytes);

}  // namespace ddp::core
