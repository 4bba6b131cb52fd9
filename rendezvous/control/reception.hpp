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
#include "rendezvous/security/tls.hpp"

namespace ddp::rendezvous {

class Reception {
 public:
  struct Options {
    std::chrono::milliseconds heartbeat_timeout{3'000};
    std::size_t waiting_max = 256;  // connections that have not said hello; beyond it the oldest one is closed
    std::function<Channel::HttpAnswer(const HttpQuestion&)> http{};
    std::shared_ptr<const security::Security> security{};  // agents must have this token; none: all are taken in
  };

  // `job_of` gives the membership that a node with this hello is for; it is called once for each. `say` hears of those
  // that never said hello.
  Reception(boost::asio::io_context& io, Options options, std::function<MembershipServer&(const Hello&)> job_of,
            std::function<void(const std::string& line)> say);
  ~Reception();  // closes what has not been handed over
  Reception(const Reception&) = delete;

  // Connections of which no byte has been read: one that begins as HTTP does, one that begins as TLS does.
  void adopt(io::UniqueFd socket, const sockaddr_storage& peer);
  void adopt_tls(io::UniqueFd socket, const sockaddr_storage& peer);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp::rendezvous
