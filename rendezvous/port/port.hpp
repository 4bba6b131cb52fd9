// Listens on one port for several protocols and hands each connection to the one that it speaks.
//
// They are told apart by the first byte that a client sends: 0x00 is the store's (PyTorch's TCPStore begins with it),
// 0x16 is TLS, a letter HTTP. The byte is only looked at; the handler reads it again. A connection that has not sent
// one costs a descriptor, for ten seconds at most, and of such connections there is a bound: beyond it the oldest one
// goes, because a client of ours speaks at once.
//
// Threads: the event loop's only.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor_room.hpp"
#include "base/unique_fd.hpp"
#include "base/warning.hpp"
#include "ddp/error.hpp"

namespace boost::asio {
class io_context;
}

namespace ddp::port {

// Takes over a connection: a socket that does not block and is closed on exec. May stop the port.
using Handler = std::function<void(base::UniqueFd socket, const sockaddr_storage& peer)>;

// Clients of a protocol without a handler are turned away, with a warning that says what came.
struct Handlers {
  Handler store{};
  Handler http{};
  Handler tls{};
};

struct PortOptions {
  // IPv4 or IPv6 addresses to bind, all with one port number; empty: all of this host's (::, or 0.0.0.0 without IPv6).
  std::vector<std::string> addresses{};
  std::uint16_t first = 0;  // the first free one from here ...
  std::uint16_t last = 0;   // ... to here is taken; 0 and 0: any free one
  std::chrono::milliseconds first_byte_limit{10'000};
  std::size_t silent_count_max = base::descriptor_room().silent;  // connections that have not sent their first byte
  // Accepted connections of an address that wait for a look at their first byte; at least 1.
  std::size_t accepted_count_max = base::descriptor_room().waiting / 2;
  base::Warn warn{};  // hears of each client that is turned away; must not call the port
};

// Each port of the range is in use.
struct PortsInUse : Error {
  using Error::Error;
};

class Port {
 public:
  // Binds and listens. Throws Error with addresses, ports and the reason, PortsInUse if that is the reason, and
  // InvalidArgument for a malformed address or a range that ends before it begins.
  Port(boost::asio::io_context& io, PortOptions options, Handlers handlers);
  ~Port();  // stop()
  Port(const Port&) = delete;

  std::uint16_t number() const;

  // On which it listens.
  std::vector<int> descriptors() const;

  // Closes the connections that no handler has yet, those in the kernel's queue included: what a process of an earlier
  // round has sent must not reach a store of this one. Give descriptors back first: without a free one the queue stays.
  void drop_pending();

  // Closes everything that no handler has; the event loop then has no work of ours.
  void stop();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp::port
