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
#include <optional>
#include <string>
#include <variant>

#include "base/address.hpp"
#include "base/descriptor_room.hpp"
#include "base/unique_fd.hpp"
#include "base/warning.hpp"
#include "rendezvous/control/handshake_pace.hpp"
#include "rendezvous/control/membership_server.hpp"
#include "rendezvous/control/operator_view.hpp"
#include "rendezvous/security/tls.hpp"
#include "rendezvous/wire/channel.hpp"

namespace ddp::rendezvous {

class Reception {
 public:
  struct Options {
    std::chrono::milliseconds heartbeat_timeout{3'000};
    std::size_t waiting_max = base::descriptor_room().waiting;  // without a hello; beyond it the oldest one is closed
    HandshakePace::Options pace{};
    std::function<Channel::HttpAnswer(const HttpQuestion&)> http{};
    std::function<bool(const NodeEnded& node)> farewell{};  // of a guardian; whether the node is known
    std::shared_ptr<const security::Security> security{};   // agents must have this token; none: all are taken in
    std::optional<security::Tokens> scrape_tokens{};        // let nobody join: for /v1/jobs and /metrics only
  };

  // Where a node is sent: to a membership here, elsewhere, away; or it is told how its job has ended, or why it may
  // not begin one.
  using Direction =
      std::variant<std::monostate, std::reference_wrapper<MembershipServer>, Elsewhere, FinishJob, Refused>;
  using Direct = std::function<Direction(const Hello& hello, const base::Address& source)>;

  // `direct` says where a node with this hello belongs; it is called once for each. `warn` hears of those that never
  // said hello, and of those that were refused.
  Reception(boost::asio::io_context& io, Options options, Direct direct, base::Warn warn);
  ~Reception();  // closes what has not been handed over
  Reception(const Reception&) = delete;

  // Connections of which no byte has been read: one that begins as HTTP does, one that begins as TLS does.
  void adopt(base::UniqueFd socket, const sockaddr_storage& peer);
  void adopt_tls(base::UniqueFd socket, const sockaddr_storage& peer);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp::rendezvous
