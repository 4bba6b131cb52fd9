// Runs a job's membership in this process, for those agents that come over the control channel, and for the one of this
// process where there is one.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/event_log.hpp"
#include "rendezvous/host/host_core.hpp"
#include "rendezvous/wire/channel.hpp"

namespace ddp::rendezvous {

class MembershipServer {
 public:
  // Called from the event loop and, but for `log`, never from within a call of this class.
  struct Handlers {
    std::function<void(const ToAgent& message)> message{};  // to this process's own agent
    std::function<void(const std::string& line)> print{};   // bounded, however often nodes come and go (line_limit.hpp)
    // Events for a log; `where` names the node, if the event concerns one.
    std::function<void(const base::LogEvent& event, const base::LogFields& where)> log{};
    // This membership may not go on, and has closed its connections. Where nobody is told, the job ends for its nodes.
    std::function<void(const HostCore::StepDown& how)> stepped_down{};
  };

  MembershipServer(boost::asio::io_context& io, MembershipOptions options, Handlers handlers);
  ~MembershipServer();
  MembershipServer(const MembershipServer&) = delete;

  // From this process's own agent.
  void send(const ToMembership& message);

  // Now, on the job's clock.
  std::chrono::milliseconds job_time() const;

  // This process's agent wants nothing more. Calls `done` once every word that others wait for is with them, or some
  // seconds later.
  void finish(std::function<void()> done);

  // An agent that has said hello, and the address that it came from.
  void take_in(std::unique_ptr<Channel> channel, const std::string& address, Hello hello);

  // The guardian of this node says so. Whether it is a node of this job.
  bool take_farewell(const NodeEnded& node);

  // What the call of this process's agent was answered, from there.
  void take_answer(const StopRound& message, const Elsewhere& from);

  const Membership& membership() const;

  // Nobody is connected, and nobody takes part any more or may come again: there is nothing left of the job.
  bool is_over() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp::rendezvous
