#include "rendezvous/control/channel.hpp"

#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
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

namespace ddp::rendezvous {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace websocket = beast::websocket;
using boost::system::error_code;

namespace {

constexpr const char* kPath = "/v1/agents";
constexpr std::uint32_t kHttpHeaderBytesMax = 8u << 10;
constexpr const char* kProduct = "ddprun";  // by which both sides know each other, in the headers Server and User-Agent

Channel::Closed reason_of(error_code error) {
  if (error == beast::error::timeout) return {"it has been silent for too long"};
  if (error == websocket::error::closed || error == asio::error::eof) return {"it closed the connection", true};
  if (error == websocket::error::message_too_big) return {"it sent a message that is too long"};
  return {error.message(), error == asio::error::connection_reset || error == asio::error::broken_pipe};
}

}  // namespace

class Channel::Impl : public std::enable_shared_from_this<Channel::Impl> {
 public:
  Impl(asio::io_context& io, io::UniqueFd socket, Side side, Options options, Handlers handlers)
      : options_(std::move(options)), handlers_(std::move(handlers)), side_(side), stream_(io) {
    sockaddr_storage local{};
    socklen_t length = sizeof local;
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &length);
    auto& tcp = beast::get_lowest_layer(stream_).socket();
    error_code error;
    tcp.assign(local.ss_family == AF_INET6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), socket.get(), error);
    if (!error) {
      socket.release();
      tcp.set_option(asio::ip::tcp::no_delay(true), error);
    }
    websocket::stream_base::timeout timeouts{};
    timeouts.handshake_timeout = options_.handshake_timeout;
    timeouts.idle_timeout = options_.heartbeat_timeout;  // Beast pings after half of it
    timeouts.keep_alive_pings = true;
    stream_.set_option(timeouts);
    stream_.read_message_max(options_.message_bytes_max);
    stream_.text(true);
  }

  void start() {
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
      auto& tcp = beast::get_lowest_layer(stream_);
      tcp.expires_after(options_.handshake_timeout);
      http::async_read(tcp, input_, *parser_, [self](error_code error, std::size_t) { self->asked(error); });
    }
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
  // The server has read a client's first words.
  void asked(error_code error) {
    if (closed_) return;
    if (error) return greeted(error);
    auto& tcp = beast::get_lowest_layer(stream_);
    input_.clear();  // a client waits for the answer
    const auto& request = parser_->get();
    // Agents name no origin; a page in somebody's browser does.
    if (websocket::is_upgrade(request) && request.target() == kPath && request.count(http::field::origin) == 0) {
      tcp.expires_never();  // the WebSocket has limits of its own
      return stream_.async_accept(request, [self = shared_from_this()](error_code failure) { self->greeted(failure); });
    }
    HttpAnswer answer{404, "text/plain; charset=utf-8", "not found\n"};
    const std::string_view target(request.target().data(), request.target().size());
    if (request.method() == http::verb::post && options_.post) {
      if (options_.post(target)) answer = {200, answer.content_type, ""};
    } else if (request.method() != http::verb::get) answer = {405, answer.content_type, "only GET is answered\n"};
    else if (options_.http)
      answer = options_.http(target,
                             {request[http::field::host].data(), request[http::field::host].size()});
    response_.result(answer.status);
    response_.set(http::field::server, kProduct);
    response_.set(http::field::content_type, answer.content_type);
    response_.keep_alive(false);
    response_.body() = std::move(answer.body);
    response_.prepare_payload();
    http::async_write(tcp, response_, [self = shared_from_this()](error_code, std::size_t) {
      error_code ignored;
      beast::get_lowest_layer(self->stream_).socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
      self->fail({"", true});
    });
  }

  void greeted(error_code error) {
    parser_.reset();
    if (closed_) return;
    if (error == websocket::error::upgrade_declined && answer_[http::field::server] != kProduct)
      return fail({"what answers there is no ddprun (it speaks HTTP)"});
    if (error == http::error::bad_version || error == http::error::bad_line_ending ||
        error == http::error::end_of_stream || error == http::error::partial_message)
      return fail({error == http::error::bad_version ? "what answers there is no ddprun"
                                                            : "it closed the connection without an answer"});
    if (error) return fail(reason_of(error));
    is_open_ = true;
    read_next();
    if (const auto opened = handlers_.opened) opened();  // a copy: the call may end this object's handlers
    write_next();
  }

  void read_next() {
    stream_.async_read(input_, [self = shared_from_this()](error_code error, std::size_t) {
      if (self->closed_) return;
      if (error) return self->fail(reason_of(error));
      const auto bytes = self->input_.data();
      if (const auto message = self->handlers_.message) message({static_cast<const char*>(bytes.data()), bytes.size()});
      self->input_.consume(self->input_.size());
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
      if (error) return self->fail(reason_of(error));
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
    error_code ignored;
    beast::get_lowest_layer(stream_).socket().close(ignored);
    tell_finished();
  }

  void tell_finished() {
    if (finished_) asio::post(stream_.get_executor(), std::exchange(finished_, nullptr));
  }

  Options options_;
  Handlers handlers_;
  Side side_;
  websocket::stream<beast::tcp_stream> stream_;
  websocket::response_type answer_;
  std::optional<http::request_parser<http::empty_body>> parser_;  // of a server's end, until the WebSocket is open
  http::response<http::string_body> response_;
  beast::flat_buffer input_;
  std::deque<std::string> queue_;  // the first one is being written
  std::size_t queued_bytes_ = 0;
  std::function<void()> finished_;
  bool is_open_ = false, writing_ = false, finishing_ = false, saying_goodbye_ = false, closed_ = false;
};

Channel::Channel(asio::io_context& io, io::UniqueFd socket, Side side, Options options, Handlers handlers)
    : impl_(std::make_shared<Impl>(io, std::move(socket), side, std::move(options), std::move(handlers))) {
  impl_->start();
}

Channel::~Channel() { impl_->close(); }
void Channel::hand_over(Handlers handlers) { impl_->hand_over(std::move(handlers)); }
void Channel::send(std::string text) { impl_->send(std::move(text)); }
void Channel::finish(std::function<void()> done) { impl_->finish(std::move(done)); }
void Channel::close() { impl_->close(); }

}  // namespace ddp::rendezvous
