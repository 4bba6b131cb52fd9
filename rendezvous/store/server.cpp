#include "rendezvous/store/server.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include "ddp/error.hpp"
#include "rendezvous/io/unique_fd.hpp"
#include "rendezvous/store/codec.hpp"
#include "rendezvous/store/door.hpp"
#include "rendezvous/store/key_value_store.hpp"

namespace ddp::store {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::size_t kInputBytes = 64u << 10;          // read at one time; one buffer serves all connections
constexpr std::size_t kOutputBytesMax = 1u << 20;       // unread answers beyond which a client is not read from
constexpr int kAcceptCountMax = 64;                     // before others get their turn
constexpr std::chrono::milliseconds kAcceptPause{100};  // when descriptors or memory have run out
constexpr std::size_t kWarningCountMax = 1024;          // different ones; later ones are not given

ParserLimits parser_limits(std::size_t value_bytes_max) {
  ParserLimits limits;
  limits.value_bytes_max = value_bytes_max;
  // COMPARE_SET has a key and two values.
  limits.command_bytes_max = std::max(kMessageBytesMax, 2 * value_bytes_max + kKeyBytesMax + 64);
  return limits;
}

KeyValueStoreOptions store_options(const ServerOptions& options) {
  return {.value_bytes_max = options.value_bytes_max,
          .answer_bytes_max = std::max(kMessageBytesMax, options.value_bytes_max + 8),
          .total_bytes_max = options.total_bytes_max};
}

io::UniqueFd listen_on(const std::string& address, std::uint16_t port) {
  const bool is_v6 = address.find(':') != std::string::npos;
  const std::string where = (is_v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
  error_code error;
  const auto parsed = asio::ip::make_address(address, error);
  if (error) throw StoreError("the store can't listen on " + where + ": that is no IPv4 or IPv6 address");
  const tcp::endpoint endpoint(parsed, port);
  const auto require = [&where](bool ok) {
    if (ok) return;
    const int reason = errno;
    throw StoreError("the store can't listen on " + where + ": " + std::strerror(reason) +
                     (reason == EADDRINUSE ? "; try another port, or 0 for a free one" : ""));
  };
  // Asio would leave the descriptor open in what ddprun starts.
  io::UniqueFd socket(::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  require(static_cast<bool>(socket));
  const int on = 1, off = 0;
  require(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
  // :: takes IPv4 too, as in the reference.
  if (parsed.is_v6()) require(::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0);
  require(::bind(socket.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0);
  require(::listen(socket.get(), SOMAXCONN) == 0);
  return socket;
}

}  // namespace

class Server::Impl : public std::enable_shared_from_this<Server::Impl> {
 public:
  Impl(asio::io_context& io, ServerOptions options);

  void start() { accept_when_ready(); }
  void begin_round();
  void stop();
  std::uint16_t port() const { return port_; }

 private:
  class Connection;

  void accept_when_ready();
  void accept_ready();
  io::UniqueFd accept_next(sockaddr_storage& peer);
  void admit(io::UniqueFd socket, const sockaddr_storage& peer);
  void apply(ConnectionId from, Command command);
  void forget(ConnectionId connection);
  void warn(const std::string& message);

  ServerOptions options_;
  Door door_;
  tcp::acceptor acceptor_;
  asio::steady_timer accept_pause_;
  std::uint16_t port_ = 0;
  KeyValueStore store_;
  std::map<ConnectionId, std::shared_ptr<Connection>> connections_;
  std::uint64_t connections_made_ = 0;
  std::array<char, kInputBytes> input_;
  std::set<std::string> warnings_given_;
};

// One client. Its handlers hold it; once closed it no longer touches the server, which may be gone.
class Server::Impl::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Impl& server, ConnectionId id, tcp::socket socket, std::string peer)
      : server_(server),
        id_(id),
        socket_(std::move(socket)),
        peer_(std::move(peer)),
        parser_(parser_limits(server.options_.value_bytes_max)) {}

  void read_when_ready() {
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
      if (!self->socket_.is_open()) return;
      if (error) return self->end();
      self->read_ready();
    });
  }

  void send(const std::string& bytes) {
    output_ += bytes;
    write_next();
  }

  void close() {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  void read_ready() {
    error_code error;
    const std::size_t count = socket_.read_some(asio::buffer(server_.input_), error);
    if (error == asio::error::would_block || error == asio::error::interrupted) return read_when_ready();
    if (error) return end();
    take_in({server_.input_.data(), count});
  }

  void take_in(std::string_view bytes) {
    try {
      while (output_.size() + in_flight_.size() < kOutputBytesMax) {
        auto command = parser_.next(bytes);
        if (!command) return read_when_ready();
        server_.apply(id_, std::move(*command));
      }
      unread_.assign(bytes);  // until the client has read some of its answers
      is_paused_ = true;
    } catch (const StoreError& error) {
      server_.warn("the store closed the connection from " + peer_ + ": " + error.what());
      end();
    }
  }

  void write_next() {
    if (!in_flight_.empty() || output_.empty()) return;
    in_flight_.swap(output_);
    asio::async_write(socket_, asio::buffer(in_flight_), [self = shared_from_this()](error_code error, std::size_t) {
      if (!self->socket_.is_open()) return;
      if (error) return self->end();
      self->written();
    });
  }

  void written() {
    in_flight_.clear();
    if (in_flight_.capacity() > kInputBytes) in_flight_.shrink_to_fit();
    write_next();
    if (std::exchange(is_paused_, false)) take_in(std::exchange(unread_, {}));
  }

  void end() {
    close();
    server_.forget(id_);
  }

  Impl& server_;
  const ConnectionId id_;
  tcp::socket socket_;
  const std::string peer_;
  CommandParser parser_;
  std::string in_flight_;  // being written
  std::string output_;     // to be written after it
  bool is_paused_ = false;
  std::string unread_;  // while paused: bytes that came but were not looked at
};

Server::Impl::Impl(asio::io_context& io, ServerOptions options)
    : options_(std::move(options)),
      door_(AllowList::parse(options_.allow)),
      acceptor_(io),
      accept_pause_(io),
      store_(store_options(options_)) {
  auto socket = listen_on(options_.address, options_.port);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  acceptor_.assign(bound.ss_family == AF_INET ? tcp::v4() : tcp::v6(), socket.get());
  socket.release();
  port_ = acceptor_.local_endpoint().port();
}

void Server::Impl::accept_when_ready() {
  acceptor_.async_wait(tcp::acceptor::wait_read, [self = shared_from_this()](error_code error) {
    if (!error && self->acceptor_.is_open()) self->accept_ready();
  });
}

void Server::Impl::accept_ready() {
  for (int count = 0; count < kAcceptCountMax; ++count) {
    sockaddr_storage peer{};
    if (auto socket = accept_next(peer)) {
      admit(std::move(socket), peer);
      continue;
    }
    if (errno == EAGAIN) break;
    // Most likely descriptors have run out. The peer stays in the queue and the socket readable: without a pause this
    // would spin.
    warn(std::string("the store can't take in a connection: ") + std::strerror(errno) + "; it goes on trying");
    accept_pause_.expires_after(kAcceptPause);
    accept_pause_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && self->acceptor_.is_open()) self->accept_when_ready();
    });
    return;
  }
  accept_when_ready();
}

// The first in the queue. Empty, with errno, where there is none or it can't be had.
io::UniqueFd Server::Impl::accept_next(sockaddr_storage& peer) {
  while (true) {
    socklen_t length = sizeof peer;
    io::UniqueFd socket(::accept4(acceptor_.native_handle(), reinterpret_cast<sockaddr*>(&peer), &length,
                                  SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket || (errno != EINTR && errno != ECONNABORTED)) return socket;
  }
}

void Server::Impl::admit(io::UniqueFd socket, const sockaddr_storage& peer) {
  char byte;
  if (::recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) return;  // it only tried the port
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) return;
  if (const auto reason = door_.refusal(peer, local)) return warn("the store refused " + *reason);
  const std::string address = io::address_of(peer).text();
  if (connections_.size() >= options_.connection_count_max) {
    return warn("the store refused a connection from " + address + ": it has " + std::to_string(connections_.size()) +
                " already, its limit");
  }
  tcp::socket stream(acceptor_.get_executor());
  error_code error;
  stream.assign(peer.ss_family == AF_INET ? tcp::v4() : tcp::v6(), socket.get(), error);
  if (error) return warn("the store can't watch the connection from " + address + ": " + error.message());
  socket.release();
  stream.non_blocking(true, error);
  stream.set_option(tcp::no_delay(true), error);
  const ConnectionId id{++connections_made_};
  const auto connection = std::make_shared<Connection>(*this, id, std::move(stream), address);
  connections_.emplace(id, connection);
  connection->read_when_ready();
}

// Answers only start to be written here: no connection ends before this returns.
void Server::Impl::apply(ConnectionId from, Command command) {
  for (const Answer& answer : store_.step(from, std::move(command))) connections_.at(answer.to)->send(answer.bytes);
}

void Server::Impl::forget(ConnectionId connection) {
  store_.disconnected(connection);
  connections_.erase(connection);
}

void Server::Impl::begin_round() {
  for (const auto& [id, connection] : connections_) connection->close();
  connections_.clear();
  store_ = KeyValueStore(store_options(options_));
  // Those still in the queue connected in the old round.
  sockaddr_storage peer{};
  while (accept_next(peer)) {
  }
}

void Server::Impl::stop() {
  if (!acceptor_.is_open()) return;
  begin_round();
  error_code ignored;
  acceptor_.close(ignored);
  accept_pause_.cancel();
}

void Server::Impl::warn(const std::string& message) {
  if (!options_.warn || warnings_given_.size() >= kWarningCountMax) return;
  if (warnings_given_.insert(message).second) options_.warn(message);
}

Server::Server(asio::io_context& io, ServerOptions options) : impl_(std::make_shared<Impl>(io, std::move(options))) {
  impl_->start();
}

Server::~Server() { stop(); }

std::uint16_t Server::port() const { return impl_->port(); }

void Server::begin_round() { impl_->begin_round(); }

void Server::stop() { impl_->stop(); }

}  // namespace ddp::store
