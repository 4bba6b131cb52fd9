// Sends requests to the guardian, in their order, and never waits for it.
//
// The guardian carries out one request at a time, and waits for each exec: for the disk that holds the program of the
// workers. Meanwhile the socket may fill, and what has no room is kept here. A guardian that makes no room for a
// request within the limit hangs.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "base/unique_file.hpp"
#include "launcher/guardian/protocol.hpp"

namespace ddp::launcher {

class GuardianRequests {
 public:
  static constexpr std::size_t kWaitingMax = 16'384;  // far more than a spawn and a kill of each worker of a node

  // `lost` is called where a request can't be sent: the guardian is gone or hangs, or too many wait. What waits then is
  // forgotten. Throws std::system_error where descriptors run out.
  GuardianRequests(boost::asio::io_context& io, int socket, std::function<void()> lost,
                   std::chrono::milliseconds limit = std::chrono::seconds(20));

  // The descriptors stay the caller's. Throws Error where a variable holds a NUL byte: behind it another one would
  // begin, as execve() takes them.
  void send(const guardian::Request& request, std::span<const int> descriptors);

 private:
  struct QueuedRequest {
    std::vector<char> packet;
    std::vector<base::UniqueFile> descriptors;  // a worker's log files among them
  };

  void send_waiting();
  void wait_for_room(guardian::Sent how);
  void begin_limit();
  void lose();

  boost::asio::posix::stream_descriptor socket_;  // a duplicate
  boost::asio::steady_timer limit_timer_, retry_timer_;
  const std::function<void()> lost_;
  const std::chrono::milliseconds limit_;
  std::deque<QueuedRequest> waiting_;
};

}  // namespace ddp::launcher
