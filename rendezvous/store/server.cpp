#include "rendezvous/store/server.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "ddp/error.hpp"
#include "rendezvous/io/address.hpp"
#include "rendezvous/store/codec.hpp"
#include "rendezvous/store/door.hpp"
#include "rendezvous/store/key_value_store.hpp"

namespace ddp::store {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::size_t kInputBytes = 64u << 10;      // read at one time; one buffer serves all connections
constexpr std::size_t kFirstBytes = 256;            // read by themselves: nearly every request fits
constexpr int kReadsInARow = 16;                    // of one client, while it asks nothing
constexpr std::size_t kOutputBytesMax = 1u << 20;   // unread answers beyond which a client is not read from
constexpr std::size_t kOutputBytesKept = 1u << 10;  // of a connection's buffer for answers, once they are written

ParserLimits parser_limits(std::size_t value_bytes_max) {
  ParserLimits limits;
  limits.value_bytes_max = value_bytes_max;
  // COMPARE_SET has a key and two values.
  limits.command_bytes_max = std::max(kMessageBytesMax, 2 * value_bytes_max + kKeyBytesMax + 64);
  return limits;
}

AllowList allow_list(const ServerOptions& options) {
  AllowList list = AllowList::parse(options.allow);
  list.option = options.allow_option;
  return list;
}

KeyValueStoreOptions store_options(const ServerOptions& options) {
  return {.value_bytes_max = options.value_bytes_max,
          .answer_bytes_max = std::max(kMessageBytesMax, options.value_bytes_max + 8),
          .total_bytes_max = options.total_bytes_max};
}

}  // namespace

class Server::Impl {
 public:
  Impl(asio::io_context& io, ServerOptions options);

  void adopt(io::UniqueFd socket, const sockaddr_storage& peer);
  void put(const std::string& key, const std::string& value);
  void allow(const std::vector<std::string>& blocks) { door_.allow(AllowList::parse(blocks)); }
  void begin_round();
  void stop();

 private:
  class Connection;

  void apply(ConnectionId from, Command&& command);
  void flush();
  void warn(const char* reason, const std::string& source, const std::string& what) const {
    if (options_.warn) options_.warn({reason, source, "the store " + what});
  }
  void forget(ConnectionId connection);
  void tell_count() const {
    if (options_.count_changed) options_.count_changed(connections_.size());
  }

  asio::io_context& io_;
  ServerOptions options_;
  Door door_;
  KeyValueStore store_;
  std::unordered_map<ConnectionId, std::shared_ptr<Connection>> connections_;
  std::uint64_t connections_made_ = 0;
  std::vector<Connection*> unwritten_;  // those that answers were sent to, until flush()
  std::array<char, kInputBytes> input_;
  bool is_stopped_ = false;
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

  // Into the connection's own few bytes, because Asio then reads as soon as it sees that there is something: a request
  // costs three calls of the kernel (epoll_wait, recv, send). To wait first and read then costs a fourth.
  void read_when_ready() {
    socket_.async_receive(asio::buffer(first_bytes_), [self = shared_from_this()](error_code error, std::size_t count) {
      if (!self->socket_.is_open()) return;
      if (error) return self->end();
      self->read_ready({self->first_bytes_.data(), count});
    });
  }

  // To be written by flush(), which the server calls before it waits again.
  void send(const std::string& bytes) {
    is_answered_ = true;
    if (output_.empty()) server_.unwritten_.push_back(this);
    output_ += bytes;
  }

  // Most answers fit into the socket's buffer: one plain call, and nothing to wait for.
  void flush() {
    if (is_writing_ || output_.empty()) return;
    error_code error;
    written_bytes_ = socket_.write_some(asio::buffer(output_), error);
    if (error && error != asio::error::would_block && error != asio::error::interrupted) {
      return output_.clear();  // the peer has gone, which reading is about to find out
    }
    if (written_bytes_ == output_.size()) return clear_output();
    is_writing_ = true;
    write_when_ready();
  }

  void close() {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  // What does not fit into those is read at once, into the buffer that all share. So is from a client that got no
  // answer (to SET there is none): it has not waited for one and most likely sends more already.
  void read_ready(std::string_view bytes) {
    bool may_be_more = bytes.size() == first_bytes_.size();
    for (int reads = 0;; ++reads) {
      is_answered_ = false;
      if (!take_in(bytes)) return;
      if (reads == kReadsInARow || (is_answered_ && !may_be_more)) break;
      error_code error;
      const std::size_t count = socket_.read_some(asio::buffer(server_.input_), error);
      if (error == asio::error::would_block || error == asio::error::interrupted) break;
      if (error) return end();
      bytes = {server_.input_.data(), count};
      may_be_more = count == server_.input_.size();
    }
    read_when_ready();
  }

  // False where no more is to be read now: the connection has ended, or is paused.
  bool take_in(std::string_view bytes) {
    try {
      while (true) {
        if (output_.size() >= kOutputBytesMax) server_.flush();
        if (output_.size() >= kOutputBytesMax) {
          unread_.assign(bytes);  // until the client has read some of its answers
          is_paused_ = true;
          return false;
        }
        auto command = parser_.next(bytes);
        if (!command) break;
        server_.apply(id_, std::move(*command));
      }
      server_.flush();
      return true;
    } catch (const StoreError& error) {
      server_.flush();  // what came before has its answers, and wakes others
      server_.warn("store: command refused", peer_, "closed the connection from " + peer_ + ": " + error.what());
      end();
      return false;
    }
  }

  void write_when_ready() {
    socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](error_code error) {
      if (!self->socket_.is_open()) return;
      if (error) return self->end();
      self->write_ready();
    });
  }

  void write_ready() {
    error_code error;
    written_bytes_ += socket_.write_some(asio::buffer(output_) + written_bytes_, error);
    if (error && error != asio::error::would_block && error != asio::error::interrupted) return end();
    if (written_bytes_ < output_.size()) return write_when_ready();
    is_writing_ = false;
    clear_output();
    if (std::exchange(is_paused_, false) && take_in(std::exchange(unread_, {}))) read_when_ready();
  }

  void clear_output() {
    output_.clear();
    if (output_.capacity() > kOutputBytesKept) output_.shrink_to_fit();
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
  std::array<char, kFirstBytes> first_bytes_;
  std::string output_;             // to be written
  std::size_t written_bytes_ = 0;  // of it
  bool is_writing_ = false;        // it did not fit, and waits for room
  bool is_answered_ = false;       // since it was read from last
  bool is_paused_ = false;
  std::string unread_;  // while paused: bytes that came but were not looked at
};

Server::Impl::Impl(asio::io_context& io, ServerOptions options)
    : io_(io), options_(std::move(options)), door_(allow_list(options_)), store_(store_options(options_)) {}

void Server::Impl::adopt(io::UniqueFd socket, const sockaddr_storage& peer) {
  if (is_stopped_) return;
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) return;
  const auto source = io::address_of(peer);
  const auto address = source.text();
  if (const auto why = door_.refusal(peer, local))
    return warn(source.is_loopback() ? "store: another user" : "store: address that is not allowed", address,
                "refused " + *why);
  if (connections_.size() >= options_.connection_count_max) {
    return warn("store: too many connections", address,
                "refused a connection from " + address + ": it has " + std::to_string(connections_.size()) +
                    " already, its limit");
  }
  tcp::socket stream(io_);
  error_code error;
  stream.assign(peer.ss_family == AF_INET ? tcp::v4() : tcp::v6(), socket.get(), error);
  if (error)
    return warn("connection not taken in", address,
                "can't watch the connection from " + address + ": " + error.message());
  socket.release();
  stream.non_blocking(true, error);
  stream.set_option(tcp::no_delay(true), error);
  const ConnectionId id{++connections_made_};
  const auto connection = std::make_shared<Connection>(*this, id, std::move(stream), address);
  connections_.emplace(id, connection);
  tell_count();
  connection->read_when_ready();
}

void Server::Impl::apply(ConnectionId from, Command&& command) {
  for (const Answer& answer : store_.step(from, std::move(command))) connections_.at(answer.to)->send(answer.bytes);
}

void Server::Impl::put(const std::string& key, const std::string& value) {
  apply(ConnectionId{0}, command::Set{key, value});  // which has no answer of its own
  flush();
}

// Ends no connection, so that those who are told of each other's commands are there throughout.
void Server::Impl::flush() {
  for (Connection* connection : unwritten_) connection->flush();
  unwritten_.clear();
}

void Server::Impl::forget(ConnectionId connection) {
  store_.disconnected(connection);
  connections_.erase(connection);
  tell_count();
}

void Server::Impl::begin_round() {
  for (const auto& [id, connection] : connections_) connection->close();
  connections_.clear();
  tell_count();
  store_ = KeyValueStore(store_options(options_));
}

void Server::Impl::stop() {
  is_stopped_ = true;
  begin_round();
}

Server::Server(asio::io_context& io, ServerOptions options) : impl_(std::make_unique<Impl>(io, std::move(options))) {}

Server::~Server() { stop(); }

void Server::adopt(io::UniqueFd socket, const sockaddr_storage& peer) { impl_->adopt(std::move(socket), peer); }

void Server::put(const std::string& key, const std::string& value) { impl_->put(key, value); }

void Server::allow(const std::vector<std::string>& blocks) { impl_->allow(blocks); }

void Server::begin_round() { impl_->begin_round(); }

void Server::stop() { impl_->stop(); }

}  // namespace ddp::store
