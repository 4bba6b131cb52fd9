// Serves a store on a TCP port: PyTorch's TCPStore wire protocol, on the program's event loop.
//
// The protocol has no authentication, so the server binds only where it is told to and guards the door (door.hpp). A
// client that does not read its answers is not read from until it does.
//
// Threads: the event loop's only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace boost::asio {
class io_context;
}

namespace ddp::store {

struct ServerOptions {
  std::string address = "127.0.0.1";          // to bind: an IPv4 or IPv6 address
  std::uint16_t port = 0;                     // 0 takes a free one
  std::vector<std::string> allow{};           // CIDR blocks, or "any": who may connect besides our uid on this host
  std::size_t connection_count_max = 16'384;  // beyond it a connection is closed at once
  std::size_t value_bytes_max = 8u << 20;     // a longer one ends its connection
  std::size_t total_bytes_max = 1u << 30;     // of all keys and values; what exceeds it ends its connection
  // Hears one line for each peer that is refused or cut off, with the reason, once per address and reason. Must not
  // call the server.
  std::function<void(const std::string& message)> warn{};
};

class Server {
 public:
  // Binds and listens. Throws StoreError with address, port and reason (and InvalidArgument for a malformed `allow`).
  Server(boost::asio::io_context& io, ServerOptions options);
  ~Server();  // stop()

  std::uint16_t port() const;

  // Closes every connection and drops every key; the port stays. A round never meets a key of an earlier one.
  void begin_round();

  // Closes everything; the event loop then has no work of ours.
  void stop();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp::store
