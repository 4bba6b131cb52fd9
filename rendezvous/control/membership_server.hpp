// Runs the job's membership in this process, for the agent here and for those that come over the control channel.
//
// Threads: the event loop's only.
#pragma once

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <memory>

#include "rendezvous/control/membership_link.hpp"
#include "rendezvous/io/unique_fd.hpp"
#include "rendezvous/membership/membership.hpp"

namespace ddp::rendezvous {

class MembershipServer : public MembershipLink {
 public:
  MembershipServer(boost::asio::io_context& io, MembershipOptions options, std::chrono::milliseconds heartbeat_timeout,
                   Handlers handlers);
  ~MembershipServer() override;

  void send(const ToMembership& message) override;
  std::chrono::milliseconds job_time() const override;
  void finish(std::function<void()> done) override;

  // An agent's connection, of which no byte has been read.
  void adopt(io::UniqueFd socket, const sockaddr_storage& peer);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp::rendezvous
