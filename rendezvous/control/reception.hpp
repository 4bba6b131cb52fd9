// Where agents' connections come in: reads the hello of each and hands it to the membership of its job.
//
// Threads: the event loop's only.
// Protocol: docs/control_channel.md.
#pragma once

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/control/channel.hpp"
#include "rendezvous/control/membership_server.hpp"
#include "rendezvous/control/operator_view.hpp"
#include "rendezvous/io/unique_fd.hpp"

namespace ddp::rendezvous {

class Reception {
 public:
  // All agents of a large job come at once; half of the process's descriptors are left to those that have said hello.
  static std::size_t room_for_waiting();

  struct Options {
    std::chrono::milliseconds heartbeat_timeout{3'000};
    std::size_t waiting_max = room_for_waiting();  // that have not said hello; beyond it the oldest one is closed
    std::function<Channel::HttpAnswer(const HttpQuestion&)> http{};
  };

  // `job_of` gives the membership that a node with this hello is for; it is called once for each. `say` hears of those
  // that never said hello.
  Reception(boost::asio::io_context& io, Options options, std::function<MembershipServer&(const Hello&)> job_of,
            std::function<void(const std::string& line)> say);
  ~Reception();  // closes what has not been handed over
  Reception(const Reception&) = delete;

  // A connection of which no byte has been read.
  void adopt(io::UniqueFd socket, const sockaddr_storage& peer);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp::rendezvous
