// An agent's way to its job's membership, wherever that is: performs what Session decides, over the control channel or
// with the membership in this process.
//
// What is in the way is said once for each change.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/link/endpoint_name.hpp"
#include "rendezvous/link/link_lost.hpp"
#include "rendezvous/link/session.hpp"
#include "rendezvous/security/tls.hpp"

namespace ddp::rendezvous {

class MembershipServer;

class MembershipClient {
 public:
  // Called from the event loop.
  struct Handlers {
    std::function<void(const ToAgent& message)> message;
    std::function<void(const LinkLost& why)> lost;  // at most once, and nothing after it
    std::function<void(const std::string& line)> print;
    // Nobody who knows of the job is in reach, or those that are may not go on: this node's workers are to end.
    std::function<void(const Session::StopOrphans& stop)> stop_orphans{};
    // This process is to serve membership next, and to say so by host().
    std::function<void(const LostHost& lost)> serve{};
  };

  // The hello is said on each connection.
  MembershipClient(boost::asio::io_context& io, EndpointName endpoint, Session::Options options, Hello hello,
                   Handlers handlers, std::shared_ptr<const security::Security> security = nullptr);
  ~MembershipClient();
  MembershipClient(const MembershipClient&) = delete;

  // Connects to the endpoint. Once; harmless after host().
  void begin();

  // From now on the membership is this one, in this process; what it says to its own agent is for hear(). It must live
  // until step_down(), or as long as this object.
  void host(MembershipServer& membership);
  void hear(const ToAgent& message);
  void step_down(const Session::SteppedDown& how);

  void send(const ToMembership& message);

  // Somebody hears what is sent.
  bool is_joined() const;

  // Now, on the job's clock; on that of this process before the first Welcome.
  std::chrono::milliseconds job_time() const;
  std::chrono::milliseconds job_time_error() const;  // at most, either way

  // The membership that this agent is joined to, by its numeric address; empty where it is in this process, or nowhere.
  std::optional<Session::Target> whereabouts() const;

  // See Session.
  std::vector<Session::Target> farewell_targets() const;

  // A guardian says that nothing of the job is left on its node. Returns whether that node has the endpoint.
  bool take_farewell(const NodeEnded& node);

  // As this agent reaches the endpoint, for other connections to its host.
  std::string endpoint_host() const;

  // The agent wants nothing more. Calls `done` once every word that was sent has gone, or a second later.
  void finish(std::function<void()> done);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp::rendezvous
