#include "rendezvous/wire/channel.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/websocket.hpp>
#include <deque>
#include <optional>
#include <utility>

#include "base/address.hpp"
#include "base/connection_closed.hpp"
#include "rendezvous/security/stream.hpp"
#include "rendezvous/security/tls.hpp"

namespace ddp::rendezvous {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace websocket = beast::websocket;
using boost::system::error_code;

namespace {

constexpr const char* kPath = "/v1/agents";
constexpr std::uint32_t kHttpHeaderBytesMax = 8u << 10;
constexpr const char* kKilledBy = "Killed-By-Signal";  // of a farewell: the number of the signal that killed ddprun
constexpr const char* kProduct = "ddprun";  // by which both sides know each other, in the headers Server and User-Agent
constexpr std::size_t kInputBytesKept = 4u << 10;  // of the room for messages, between them
constexpr const char* kSilent = "it has been silent for too long";
constexpr const char* kSameToken =
    "the same token on all nodes and at the endpoint: `--token-file=PATH` or DDPRUN_TOKEN; "
    "docs/security.md";

// Of what two sides that differ in their tokens hear from each other.
Channel::Closed reason_of(security::TlsFailure failure, Channel::Side side) {
  const bool is_client = side == Channel::Side::client;
  switch (failure) {
    case security::TlsFailure::other_token:
      return {is_client ? "the endpoint has another token than this node" : "it has another token (--token-file)",
              false, kSameToken, "another token"};
    case security::TlsFailure::no_token_there:
      return {"this node has a token and the endpoint has none", false, kSameToken};
    case security::TlsFailure::stranger:
      return {is_client ? "what answers there is no ddprun (it does not know the token's TLS)"
                        : "it speaks TLS, but as no ddprun does",
              false, std::nullopt, "another TLS", is_client};
    case security::TlsFailure::broken: break;
  }
  return {"what it sent was changed on its way"};
}

// What came is no HTTP, or more of it than is taken: not that the connection ended or fell silent.
bool is_malformed(error_code error) {
  return error.category() == http::make_error_code(http::error::bad_version).category() &&
         error != http::error::end_of_stream && error != http::error::partial_message;
}

// Whether a Host header is a host with a port or without one, or is empty.
bool names_host(const std::string& header) {
  const bool has_bracket = header.substr(0, 1) == "[";  // around an IPv6 address
  const auto end = std::min(header.find(has_bracket ? ']' : ':'), header.size());
  const auto host = has_bracket ? header.substr(1, end - 1) : header.substr(0, end);
  const auto port = header.substr(std::min(end + (has_bracket ? 1 : 0), header.size()));
  if (header.empty()) return true;
  if (has_bracket && (end == header.size() || host.find(':') == std::string::npos)) return false;
  return base::is_host(host) &&
         (port.empty() || (port.front() == ':' && port.find_first_not_of("0123456789", 1) == std::string::npos));
}

Channel::Closed stranger(std::string why) {
  Channel::Closed out{std::move(why)};
  out.is_stranger = true;
  return out;
}

Channel::Closed answered() {
  Channel::Closed out{"its question was answered", true};
  out.is_answered = true;
  return out;
}

Channel::Closed reason_of(error_code error) {
  if (error == beast::error::timeout) return {kSilent};
  if (error == websocket::error::closed || error == asio::error::eof) return {"it closed the connection", true};
  if (error == websocket::error::message_too_big) return {"it sent a message that is too long"};
  const bool is_of_system = error.category() == boost::system::system_category();
  return {error.message(), is_of_system && base::says_connection_closed(error.value())};
}

}  // namespace

class Channel::Impl : public std::enable_shared_from_this<Channel::Impl> {
 public:
  Impl(asio::io_context& io, base::UniqueFd socket, Side side, Options options, Handlers handlers)
      : options_(std::move(options)), handlers_(std::move(handlers)), side_(side), stream_(io), limit_(io) {
    sockaddr_storage local{};
    socklen_t length = sizeof local;
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &length);
    auto& tcp = beast::get_lowest_layer(stream_);
    error_code error;
    tcp.assign(local.ss_family == AF_INET6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), socket.get(), error);
    if (!error) {
      socket.release();
      tcp.set_option(asio::ip::tcp::no_delay(true), error);
      tcp.native_non_blocking(true, error);
      tcp.non_blocking(true, error);
    }
    if (options_.tls)
      stream_.next_layer().begin_tls(options_.tls->begin(
          tcp.native_handle(), side == Side::client ? security::Tls::Side::client : security::Tls::Side::server));
    websocket::stream_base::timeout timeouts{};
    timeouts.handshake_timeout = options_.handshake_timeout;
    timeouts.idle_timeout = options_.heartbeat_timeout;  // Beast pings after half of it
    timeouts.keep_alive_pings = true;
    stream_.set_option(timeouts);
    stream_.read_message_max(options_.message_bytes_max);
    stream_.text(true);
  }

  void start() {
    limit_.expires_after(options_.handshake_timeout);
    limit_.async_wait([weak = weak_from_this()](error_code error) {
      const auto self = weak.lock();
      if (!error && self) self->fail({kSilent});
    });
    options_.tls ? begin_tls() : begin();
  }

  void hand_over(Handlers handlers) { handlers_ = std::move(handlers); }

  void send(std::string text) {
    if (closed_) return;
    queued_bytes_ += text.size();
    if (queued_bytes_ > options_.queue_bytes_max) return fail({"it does not read what it is sent"});
    queue_.push_back(std::move(text));
    write_next();
  }

  void finish(std::function<void()> done) {
    handlers_ = {};
    finished_ = std::move(done);
    finishing_ = true;
    if (closed_) return tell_finished();
    write_next();
  }

  void close() {
    handlers_ = {};
    finished_ = nullptr;
    end();
  }

 private:
  void begin_tls() {
    using Want = security::TlsSession::Want;
    if (closed_) return;
    const auto progress = stream_.next_layer().tls()->shake_hands();
    if (progress.error) return greeted(progress.error);
    if (progress.want == Want::nothing) return begin();
    auto& tcp = beast::get_lowest_layer(stream_);
    tcp.async_wait(progress.want == Want::read ? tcp.wait_read : tcp.wait_write,
                   [self = shared_from_this()](error_code error) { error ? self->greeted(error) : self->begin_tls(); });
  }

  void begin() {
    auto self = shared_from_this();
    if (side_ == Side::client) {
      stream_.set_option(websocket::stream_base::decorator(
          [](websocket::request_type& request) { request.set(http::field::user_agent, kProduct); }));
      stream_.async_handshake(answer_, options_.host, kPath, [self](error_code error) { self->greeted(error); });
    } else {
      stream_.set_option(websocket::stream_base::decorator(
          [](websocket::response_type& response) { response.set(http::field::server, kProduct); }));
      parser_.emplace();
      parser_->header_limit(kHttpHeaderBytesMax);
      parser_->body_limit(0);
      http::async_read(stream_.next_layer(), input_, *parser_,
                       [self](error_code error, std::size_t) { self->asked(error); });
    }
  }

  // The server has read a client's first words.
  void asked(error_code error) {
    if (closed_) return;
    if (is_malformed(error)) return answer_malformed(error.message());
    if (error) return greeted(error);
    // A client need not wait for the answer before it sends its first message.
    stream_.next_layer().put_back({static_cast<const char*>(input_.data().data()), input_.size()});
    input_.clear();
    const auto& request = parser_->get();
    if (request.count(http::field::host) > 1) return answer_malformed("two Host headers");
    if (!names_host(request[http::field::host])) return answer_malformed("the Host header names no host");
    // Agents name no origin; a page in somebody's browser does.
    const bool is_agent =
        websocket::is_upgrade(request) && request.target() == kPath && request.count(http::field::origin) == 0;
    const bool is_post = request.method() == http::verb::post && options_.post;
    if ((is_agent || is_post) && options_.asks_for_token && !options_.tls)
      return answer({401, "text/plain; charset=utf-8", "agents without a token are not taken in here\n"},
                    {"it has no token, which is asked for here (--token-file)", false, std::nullopt, "no token"});
    if (is_agent)
      return stream_.async_accept(request, [self = shared_from_this()](error_code failure) { self->greeted(failure); });
    const auto text = [](beast::string_view view) { return std::string_view(view.data(), view.size()); };
    HttpAnswer out{404, "text/plain; charset=utf-8", "not found\n"};
    const HttpRequest asked{text(request.method_string()), text(request.target()), text(request[http::field::host]),
                            text(request[http::field::authorization]), text(request[kKilledBy])};
    if (is_post) {
      if (options_.post(asked)) out = {200, out.content_type, ""};
    } else if (options_.http) {
      out = options_.http(asked);
    }
    answer(std::move(out), answered());
  }

  void answer_malformed(const std::string& why) {
    answer({400, "text/plain; charset=utf-8", "this is no request that is answered here: " + why + "\n"},
           {"what it sent is no HTTP request that is answered here: " + why, false, std::nullopt, "malformed request"});
  }

  void answer(HttpAnswer what, const Closed& then) {
    response_.result(what.status);
    response_.set(http::field::server, kProduct);
    response_.set(http::field::content_type, what.content_type);
    response_.keep_alive(false);
    response_.body() = std::move(what.body);
    response_.prepare_payload();
    http::async_write(stream_.next_layer(), response_, [self = shared_from_this(), then](error_code, std::size_t) {
      if (self->closed_) return;
      error_code ignored;
      self->stream_.next_layer().say_goodbye();
      beast::get_lowest_layer(self->stream_).shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
      self->fail(then);
    });
  }

  void greeted(error_code error) {
    parser_.reset();
    if (closed_) return;
    limit_.cancel();
    if (error == websocket::error::upgrade_declined) return fail(declined());
    if (error == http::error::bad_version) return fail(stranger("what answers there is no ddprun"));
    if (error == http::error::end_of_stream || error == http::error::bad_line_ending ||
        error == http::error::partial_message || error == asio::error::eof)
      return fail({"it closed the connection without an answer", true});
    if (error) return fail(why(error));
    is_open_ = true;
    read_next();
    if (const auto opened = handlers_.opened) opened();
    write_next();
  }

  // Why a client got no WebSocket.
  Closed declined() const {
    if (answer_[http::field::server] != kProduct) return stranger("what answers there is no ddprun (it speaks HTTP)");
    if (answer_.result() == http::status::unauthorized)
      return {"the endpoint asks for a token, and this node has none", false, kSameToken};
    return reason_of(websocket::error::upgrade_declined);
  }

  Closed why(error_code error) const {
    const auto* const tls = stream_.next_layer().tls();
    const auto failure = tls != nullptr ? tls->failure() : std::nullopt;
    return failure ? reason_of(*failure, side_) : reason_of(error);
  }

  void read_next() {
    stream_.async_read(input_, [self = shared_from_this()](error_code error, std::size_t) {
      if (self->closed_) return;
      if (error) return self->fail(self->why(error));
      const auto bytes = self->input_.data();
      // A copy, here and in greeted(): the call may end this object's handlers.
      if (const auto message = self->handlers_.message) message({static_cast<const char*>(bytes.data()), bytes.size()});
      self->input_.consume(self->input_.size());
      if (self->input_.capacity() > kInputBytesKept) self->input_.shrink_to_fit();
      if (!self->closed_) self->read_next();
    });
  }

  void write_next() {
    if (!is_open_ || writing_ || closed_) return;
    if (queue_.empty()) {
      if (finishing_ && !std::exchange(saying_goodbye_, true))
        stream_.async_close(websocket::close_code::normal, [self = shared_from_this()](error_code) { self->end(); });
      return;
    }
    writing_ = true;
    stream_.async_write(asio::buffer(queue_.front()), [self = shared_from_this()](error_code error, std::size_t) {
      self->writing_ = false;
      if (self->closed_) return;
      if (error) return self->fail(self->why(error));
      self->queued_bytes_ -= self->queue_.front().size();
      self->queue_.pop_front();
      self->write_next();
    });
  }

  void fail(const Closed& how) {
    if (closed_) return;
    end();
    asio::post(stream_.get_executor(), [self = shared_from_this(), how] {
      if (const auto closed = std::exchange(self->handlers_, {}).closed) closed(how);  // unless close() came between
    });
  }

  void end() {
    if (std::exchange(closed_, true)) return;
    options_.while_open.reset();
    error_code ignored;
    limit_.cancel();
    beast::get_lowest_layer(stream_).close(ignored);
    tell_finished();
  }

  void tell_finished() {
    if (finished_) asio::post(stream_.get_executor(), std::exchange(finished_, nullptr));
  }

  Options options_;
  Handlers handlers_;
  Side side_;
  websocket::stream<security::Stream, false> stream_;  // without compression
  asio::steady_timer limit_;                           // of the handshakes
  websocket::response_type answer_;
  std::optional<http::request_parser<http::empty_body>> parser_;  // of a server's end, until the WebSocket is open
  http::response<http::string_body> response_;
  beast::flat_buffer input_;
  std::deque<std::string> queue_;  // the first one is being written
  std::size_t queued_bytes_ = 0;
  std::function<void()> finished_;
  bool is_open_ = false, writing_ = false, finishing_ = false, saying_goodbye_ = false, closed_ = false;
};

Channel::Channel(asio::io_context& io, base::UniqueFd socket, Side side, Options options, Handlers handlers)
    : impl_(std::make_shared<Impl>(io, std::move(socket), side, std::move(options), std::move(handlers))) {
  impl_->start();
}

Channel::~Channel() { impl_->close(); }
void Channel::hand_over(Handlers handlers) { impl_->hand_over(std::move(handlers)); }
void Channel::send(std::string text) { impl_->send(std::move(text)); }
void Channel::finish(std::function<void()> done) { impl_->finish(std::move(done)); }
void Channel::close() { impl_->close(); }

}  // namespace ddp::rendezvous
