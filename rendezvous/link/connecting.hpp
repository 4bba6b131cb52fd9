// One attempt to reach a job's membership: resolve the name, connect, TLS, WebSocket upgrade. What is said then, the
// hello first, is Session's to decide.
//
// The attempt is one coroutine, in connecting.cpp. It uses nothing of its caller but EndpointAddresses.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/unique_fd.hpp"
#include "rendezvous/link/endpoint_addresses.hpp"
#include "rendezvous/link/session.hpp"
#include "rendezvous/wire/channel.hpp"

namespace ddp::rendezvous {

// Why an attempt failed, or why the connection that it led to has ended.
struct Unreached {
  Session::How how = Session::How::silent;
  std::string why;
  std::optional<std::string> try_this{};  // the endpoint refuses until this has been done
  bool is_host_unknown = false;           // the name has led to no address
  bool is_stranger = false;               // what answers is no ddprun
};

// peer: the numeric address of the other side.
Unreached unreached(const Channel::Closed& how, const std::string& peer);

struct Reached {
  std::string peer;                  // numeric address
  std::unique_ptr<Channel> channel;  // open; the caller sets its handlers at once, with hand_over()
  base::UniqueFd duplicate;          // of the channel's socket
};

class Connecting {
 public:
  struct Options {
    std::chrono::milliseconds limit{0};  // for the name, and for the answer of each address
    Channel::Options channel{};          // the limit for TLS and WebSocket together is there
  };
  using Outcome = std::variant<Unreached, Reached>;

  // Begins to connect. Calls `done` once and later, from the loop. `addresses` must outlive this object.
  Connecting(boost::asio::io_context& io, EndpointAddresses& addresses, const Session::Target& to, Options options,
             std::function<void(Outcome outcome)> done);

  // Ends the attempt: its sockets are closed and `done` is not called any more. `done` may destroy this object.
  ~Connecting();
  Connecting(const Connecting&) = delete;

 private:
  struct Attempt;
  std::shared_ptr<Attempt> attempt_;  // shared with the coroutine
};

}  // namespace ddp::rendezvous
