// One connection of the control channel: texts both ways over a WebSocket (RFC 6455), on a socket that is connected
// already, plain or under TLS. A server's end also answers an HTTP question, once.
//
// A peer that is silent for the heartbeat limit, although it is pinged, is dead. What is sent is queued in bounded
// memory; a peer that does not read it is cut off.
//
// Threads: the event loop's only. The only file that knows Boost.Beast is channel.cpp.
// Protocol: docs/control_channel.md.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"

namespace ddp::security {
class Tls;
}

namespace ddp::rendezvous {

class Channel {
 public:
  enum class Side { client, server };

  struct HttpAnswer {
    unsigned status = 200;
    std::string content_type = "text/plain; charset=utf-8";
    std::string body;
  };

  // The words of a client that asks for no WebSocket.
  struct HttpRequest {
    std::string_view method, target;
    std::string_view host, authorization, killed_by;  // headers
  };

  struct Options {
    std::size_t message_bytes_max = 256u << 10;
    std::size_t queue_bytes_max = 8u << 20;
    std::chrono::milliseconds heartbeat_timeout{3'000};
    std::chrono::milliseconds handshake_timeout{10'000};   // of TLS and the WebSocket together
    std::string host;                                      // the client's Host header: how the user named the endpoint
    std::shared_ptr<const security::Tls> tls{};            // this connection is under TLS
    bool asks_for_token = false;                           // the server's: no WebSocket and no POST but under TLS
    std::function<HttpAnswer(const HttpRequest&)> http{};  // the server's, but for what follows
    std::function<bool(const HttpRequest&)> post{};        // the server's, a POST without a body: whether it is known
    std::shared_ptr<void> while_open{};                    // let go of when the connection ends
  };

  struct Closed {
    std::string why;
    // The peer's kernel ended the connection, as it does when a process dies; else it fell silent.
    bool by_peer = false;
    std::optional<std::string> try_this{};  // it is no use to try again, until this has been done
    const char* reason = "no hello";        // as base::Warning::reason, for a server that had no hello from the peer
    bool is_stranger = false;               // to a client: what answers is no ddprun
    bool is_answered = false;               // a plain HTTP question was, and nothing more was wanted
  };

  // Each is called from the event loop, never from within a call of this class; none after close(). They may destroy
  // the Channel that calls them.
  struct Handlers {
    std::function<void()> opened;
    std::function<void(std::string_view text)> message;
    std::function<void(const Closed&)> closed;  // at most once, and nothing after it
  };

  // Takes the connected socket over and does the handshakes. `why` of a failed one says what the peer is.
  Channel(boost::asio::io_context& io, base::UniqueFd socket, Side side, Options options, Handlers handlers);
  ~Channel();  // close()
  Channel(const Channel&) = delete;

  // From now on these are called, in place of those before.
  void hand_over(Handlers handlers);

  void send(std::string text);

  // Sends what is queued and says goodbye, within the heartbeat limit; `done` is called then, whatever came of it. The
  // other handlers are called no more.
  void finish(std::function<void()> done);

  void close();  // at once

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp::rendezvous
