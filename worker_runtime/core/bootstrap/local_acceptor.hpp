// Accepts the ranks of this host that connect to a coordinator (meeting.hpp), by a unix socket with a random name.
//
// Threads: one caller at a time.
#pragma once

#include <poll.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"

namespace ddp::core {

class LocalAcceptor {
 public:
  // Throws std::system_error.
  explicit LocalAcceptor(int backlog);

  const std::string& name() const { return name_; }

  // Appends what to poll for.
  void add_to(std::vector<pollfd>& polled) const;

  // Calls `accept` with each Hello that has come since, given the polled entries. Closes a connection that sends
  // anything else, or that `accept` does not take. If `accept` throws, all connections stay open. Throws
  // NoDescriptorLeft.
  using Accept = std::function<void(Message& hello, base::UniqueFd& socket)>;
  void take(std::span<const pollfd> polled, const Accept& accept);

 private:
  static void identify(base::UniqueFd& socket, const Accept& accept);

  std::string name_;
  base::UniqueFd listener_;
  std::vector<base::UniqueFd> unidentified_;  // connected, without a Hello yet
};

}  // namespace ddp::core
