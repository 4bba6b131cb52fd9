// Serves a store: PyTorch's TCPStore wire protocol, on the program's event loop, over connections that a port hands it
// (rendezvous/port/port.hpp).
//
// The protocol has no authentication, so the server decides by address and user who may connect (access_control.hpp).
// While a client does not read its answers, the server does not read from it. Keys, values and all that is held for
// connections share one budget of memory (memory_budget.hpp). If it is used up, the server closes the connection that
// holds the most.
//
// Threads: the event loop's only.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "base/unique_fd.hpp"
#include "base/warning.hpp"
#include "rendezvous/store/memory_budget.hpp"

namespace boost::asio {
class io_context;
}

namespace ddp::store {

struct ServerOptions {
  std::vector<std::string> allow{};            // CIDR blocks, or "any": who may connect besides our uid on this host
  std::string allow_option = "--store-allow";  // where the user says that, for warnings
  std::size_t connection_count_max = 16'384;   // beyond it a connection is closed at once
  std::size_t value_bytes_max = 8u << 20;      // a longer one ends its connection
  // Of keys, values, and all that is held for connections.
  std::size_t total_bytes_max = std::size_t{kMemoryMibDefault} << 20;
  std::string memory_option{};  // where the user sets that, for warnings; empty: nowhere
  base::Warn warn{};            // hears of each peer that is refused or cut off; must not call the server
  // Hears how many connections there are after each change of that. Must not call the server.
  std::function<void(std::size_t)> count_changed{};
};

class Server {
 public:
  // Throws InvalidArgument for a malformed `allow`.
  Server(boost::asio::io_context& io, ServerOptions options);
  ~Server();  // stop()

  // Serves a connected socket that does not block, if its peer may come in; else closes it, with a warning.
  void adopt(base::UniqueFd socket, const sockaddr_storage& peer);

  // As a client's SET would.
  void put(const std::string& key, const std::string& value);

  // Adds to those who may connect, from now on. Throws InvalidArgument, and adds none, where one is malformed.
  void allow(const std::vector<std::string>& blocks);

  // Closes every connection and drops every key. A round never meets a key of an earlier one. These addresses may
  // connect too, and those of the round before no longer.
  void begin_round(std::set<base::Address> members);

  // Closes everything, what is adopted later too; the event loop then has no work of ours.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::store
