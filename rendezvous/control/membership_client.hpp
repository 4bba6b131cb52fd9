// Reaches the job's membership over the control channel, where another node serves the endpoint.
//
// Until the first round it tries again and again, as the endpoint may come up later than this node; what is in the way is
// said once for each change. After that the end of the connection is the end of the link.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "rendezvous/control/membership_link.hpp"
#include "rendezvous/security/tls.hpp"

namespace ddp::rendezvous {

struct EndpointName {
  std::string host;  // as the user gave it
  std::uint16_t port = 0;
};

// "node0:29400", "[fd00::1]:29400"
std::string text_of(const EndpointName& endpoint);

class MembershipClient : public MembershipLink {
 public:
  // The first message that is sent must be Hello; it is kept, for the case that the connection is made anew.
  MembershipClient(boost::asio::io_context& io, EndpointName endpoint, std::chrono::milliseconds join_timeout,
                   std::chrono::milliseconds heartbeat_timeout, Handlers handlers,
                   std::shared_ptr<const security::Security> security = nullptr);
  ~MembershipClient() override;

  void send(const ToMembership& message) override;
  std::chrono::milliseconds job_time() const override;
  void finish(std::function<void()> done) override;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp::rendezvous
