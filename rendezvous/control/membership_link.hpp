// An agent's way to the job's membership: in its own process where it serves the endpoint, else over the control channel.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "rendezvous/membership/messages.hpp"

namespace ddp::rendezvous {

// Why an agent cannot take part, or no longer: the parts of an error message.
struct LinkLost {
  std::string what, where, try_this;
};

class MembershipLink {
 public:
  // Called from the event loop, never from within a call of this class.
  struct Handlers {
    std::function<void(const ToAgent& message)> message;
    std::function<void(const LinkLost& why)> lost;  // at most once, and nothing after it
    std::function<void(const std::string& line)> say;
  };

  virtual ~MembershipLink() = default;

  virtual void send(const ToMembership& message) = 0;

  // Now, on the job's clock; on that of this process before the first Welcome.
  virtual std::chrono::milliseconds job_time() const = 0;

  // The agent wants nothing more. Calls `done` once every word that others wait for is with them, or some seconds later.
  virtual void finish(std::function<void()> done) = 0;
};

}  // namespace ddp::rendezvous
