// A connected TCP socket, plain or under TLS, in the form that Boost.Beast wants: one instance of its templates serves
// both. Nothing is kept here but what put_back() gives, so an idle connection under TLS costs what OpenSSL keeps and no
// more.
//
// Threads: the event loop's only.
#pragma once

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/websocket/teardown.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/security/tls.hpp"

namespace ddp::security {

namespace asio = boost::asio;

class Stream {
 public:
  using next_layer_type = asio::basic_stream_socket<asio::ip::tcp, asio::io_context::executor_type>;
  using executor_type = next_layer_type::executor_type;

  explicit Stream(asio::io_context& io) : state_(std::make_shared<State>(io)) {}
  ~Stream() {
    boost::system::error_code ignored;
    next_layer().close(ignored);
  }
  Stream(const Stream&) = delete;

  next_layer_type& next_layer() { return state_->socket; }
  const next_layer_type& next_layer() const { return state_->socket; }
  executor_type get_executor() { return state_->socket.get_executor(); }

  // The socket is there by now, and does not block.
  void begin_tls(std::unique_ptr<TlsSession> session) { state_->tls = std::move(session); }
  TlsSession* tls() const { return state_->tls.get(); }  // none: it is plain

  // Bytes that were read too far; they are read again, before all others.
  void put_back(std::string_view bytes) { state_->unread.insert(0, bytes); }

  void say_goodbye() {
    if (state_->tls && state_->socket.is_open()) state_->tls->say_goodbye();
  }

  template <class Buffers, class CompletionToken>
  auto async_read_some(const Buffers& buffers, CompletionToken&& token) {
    if (is_plain() && state_->unread.empty())
      return next_layer().async_read_some(buffers, std::forward<CompletionToken>(token));
    return transfer([buffers](State& state) { return read_now(state, buffers); }, std::forward<CompletionToken>(token));
  }

  template <class Buffers, class CompletionToken>
  auto async_write_some(const Buffers& buffers, CompletionToken&& token) {
    if (is_plain()) return next_layer().async_write_some(buffers, std::forward<CompletionToken>(token));
    return transfer([buffers](State& state) { return write_now(state, buffers); },
                    std::forward<CompletionToken>(token));
  }

 private:
  using Result = TlsSession::Result;
  using Want = TlsSession::Want;
  using error_code = boost::system::error_code;

  static constexpr std::size_t kRecordBytesMax = 16u << 10;  // of TLS

  // Shared with what is under way: Beast's pings may outlive the stream by a turn of the loop.
  struct State {
    explicit State(asio::io_context& io) : socket(io.get_executor()) {}
    next_layer_type socket;
    std::unique_ptr<TlsSession> tls;
    std::string unread;
  };

  // A plain socket's own operations are cheaper than transfer(): while one waits it needs no epoll_ctl().
  bool is_plain() const { return !state_->tls; }

  // Tries until it is done, and waits for the socket in between.
  template <class Try, class CompletionToken>
  auto transfer(Try attempt, CompletionToken&& token) {
    return asio::async_compose<CompletionToken, void(error_code, std::size_t)>(
        [state = state_, attempt, result = Result(), is_first = true, is_done = false](auto& self,
                                                                                       error_code error = {}) mutable {
          if (error) return self.complete(error, 0);
          if (is_done) return self.complete(result.error, result.bytes);
          // TLS knows the descriptor by its number, which may be another one's once the socket is closed.
          result = state->socket.is_open() ? attempt(*state) : Result{Want::nothing, 0, asio::error::operation_aborted};
          const bool was_first = std::exchange(is_first, false);
          auto& socket = state->socket;
          if (result.want != Want::nothing)
            return socket.async_wait(result.want == Want::read ? socket.wait_read : socket.wait_write, std::move(self));
          is_done = true;
          if (was_first) return asio::post(socket.get_executor(), std::move(self));  // never from within the call
          self.complete(result.error, result.bytes);
        },
        token, state_->socket);
  }

  template <class Buffers>
  static Result read_now(State& state, const Buffers& buffers) {
    if (!state.unread.empty()) {
      const auto bytes = asio::buffer_copy(buffers, asio::buffer(state.unread));
      state.unread.erase(0, bytes);
      if (state.unread.empty()) state.unread.shrink_to_fit();
      return {Want::nothing, bytes, {}};
    }
    for (auto it = asio::buffer_sequence_begin(buffers); it != asio::buffer_sequence_end(buffers); ++it) {
      const asio::mutable_buffer buffer(*it);
      if (buffer.size() != 0) return state.tls->read_some(buffer.data(), buffer.size());
    }
    return {};
  }

  template <class Buffers>
  static Result write_now(State& state, const Buffers& buffers) {
    // A frame's header and its payload make one record.
    std::array<unsigned char, kRecordBytesMax> record;
    const auto bytes = asio::buffer_copy(asio::buffer(record), buffers);
    return bytes == 0 ? Result() : state.tls->write_some(record.data(), bytes);
  }

  std::shared_ptr<State> state_;
};

// How Beast ends a connection, after both sides have said goodbye.
template <class Handler>
void async_teardown(boost::beast::role_type role, Stream& stream, Handler&& handler) {
  stream.say_goodbye();
  boost::beast::websocket::async_teardown(role, stream.next_layer(), std::forward<Handler>(handler));
}

}  // namespace ddp::security
