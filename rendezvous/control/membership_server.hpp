// Runs a job's membership in this process, for those agents that come over the control channel, and for the one of this
// process where there is one.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

#include "rendezvous/control/channel.hpp"
#include "rendezvous/control/membership_link.hpp"
#include "rendezvous/membership/membership.hpp"

namespace ddp::rendezvous {

class MembershipServer : public MembershipLink {
 public:
  // The first two handlers are those of this process's own agent.
  MembershipServer(boost::asio::io_context& io, MembershipOptions options, Handlers handlers);
  ~MembershipServer() override;

  void send(const ToMembership& message) override;
  std::chrono::milliseconds job_time() const override;
  void finish(std::function<void()> done) override;

  // An agent that has said hello, and the address that it came from.
  void take_in(std::unique_ptr<Channel> channel, const std::string& address, const Hello& hello);

  const Membership& membership() const;

  // Nobody is connected, and nobody takes part any more: there is nothing left of the job.
  bool is_over() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp::rendezvous
