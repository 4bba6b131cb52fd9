#include "rendezvous/store/server.hpp"

#include <malloc.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "ddp/error.hpp"
#include "rendezvous/store/access_control.hpp"
#include "rendezvous/store/codec.hpp"
#include "rendezvous/store/key_value_store.hpp"
#include "rendezvous/store/memory_budget.hpp"
#include "rendezvous/store/send_queue.hpp"

namespace ddp::store {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::size_t kInputBytes = 64u << 10;        // read at one time; one buffer serves all connections
constexpr std::size_t kFirstBytes = 256;              // read by themselves: nearly every request fits
constexpr int kReadsInARow = 16;                      // of one client, while it asks nothing
constexpr std::size_t kOutputBytesMax = 1u << 20;     // unread answers beyond which a client is not read from
constexpr std::size_t kConnectionBytes = 2u << 10;    // of memory, for one that says nothing; about
constexpr std::size_t kReturnedBytesMax = 32u << 20;  // that the allocator may keep after they were returned to it

constexpr const char* kMemoryIsFull = "store: memory is full";  // a warning's reason

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

// What may be held for one connection: any one command fits in.
std::size_t share_bytes(const ServerOptions& options) {
  const std::size_t longest_command = 2 * options.value_bytes_max + kKeyBytesMax + kHoldingBytesKept;  // COMPARE_SET
  return std::min(options.total_bytes_max, std::max(options.total_bytes_max / 8, longest_command));
}

KeyValueStoreOptions store_options(const ServerOptions& options) {
  return {.value_bytes_max = options.value_bytes_max,
          .answer_bytes_max = std::max(kMessageBytesMax, options.value_bytes_max + 8),
          .total_bytes_max = options.total_bytes_max,
          .wait_bytes_max = share_bytes(options)};
}

std::string size_text(std::size_t bytes) {
  return bytes < 10u << 20 ? std::to_string(bytes >> 10) + " KiB" : std::to_string(bytes >> 20) + " MiB";
}

}  // namespace

class Server::Impl {
 public:
  Impl(asio::io_context& io, ServerOptions options);

  void adopt(base::UniqueFd socket, const sockaddr_storage& peer);
  void put(const std::string& key, const std::string& value);
  void allow(const std::vector<std::string>& blocks) { access_.allow(AllowList::parse(blocks)); }
  void begin_round(std::set<base::Address> members) {
    access_.begin_round(std::move(members));
    drop_all();
  }
  void stop();

 private:
  class Connection;

  void drop_all();

  void apply(ConnectionId from, Command&& command);
  std::vector<Answer> step(ConnectionId from, Command&& command);
  void flush();
  void warn(const char* reason, const std::string& source, const std::string& what) const {
    if (options_.warn) options_.warn({reason, source, "the store " + what});
  }
  void forget(ConnectionId connection);
  bool make_room(ConnectionId asker, std::size_t bytes);
  std::size_t held_bytes(const Connection& connection);
  void give_back_memory();
  std::string memory_hint() const {
    return options_.memory_option.empty() ? "" : "; " + options_.memory_option + "=MIB allows more";
  }
  void tell_count() const {
    if (options_.count_changed) options_.count_changed(connections_.size());
  }

  asio::io_context& io_;
  ServerOptions options_;
  AccessControl access_;
  std::optional<KeyValueStore> store_;  // always there
  std::unordered_map<ConnectionId, std::shared_ptr<Connection>> connections_;
  std::uint64_t connections_made_ = 0;
  std::vector<Connection*> unwritten_;  // those that answers were sent to, until flush()
  std::array<char, kInputBytes> input_;
  SendQueue::Scratch scratch_;
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
  void send(Answer&& answer) {
    is_answered_ = true;
    if (send_queue_.is_empty()) server_.unwritten_.push_back(this);
    send_queue_.append(std::move(answer));
  }

  // Most answers fit into the socket's buffer: one plain call, and nothing to wait for.
  void flush() {
    if (is_writing_ || send_queue_.is_empty()) return;
    if (write()) send_queue_.clear();  // the peer has gone, which reading is about to find out
    if (!send_queue_.is_empty()) {
      is_writing_ = true;
      write_when_ready();
    }
    count_memory();
  }

  // Counts in the budget what is held for this connection now. What it waits for is counted by the store.
  void count_memory() {
    const std::size_t bytes =
        kConnectionBytes + parser_.memory_bytes() + send_queue_.memory_bytes() + unread_.capacity();
    if (bytes == counted_bytes_) return;
    auto& memory = server_.store_->memory();
    memory.remove(counted_bytes_);
    memory.add(bytes);
    counted_bytes_ = bytes;
  }

  std::size_t counted_bytes() const { return counted_bytes_; }
  ConnectionId id() const { return id_; }
  const std::string& peer() const { return peer_; }
  const SendQueue& send_queue() const { return send_queue_; }

  std::string memory_text() const {
    return "a command of " + size_text(parser_.memory_bytes()) + ", a wait of " +
           size_text(server_.store_->wait_bytes(id_)) + " and " + size_text(send_queue_.bytes()) +
           " of unread answers" + server_.memory_hint();
  }
  std::string memory_text_when_full(const char* what_it_does) const {
    return "the store's memory is full (" + size_text(server_.store_->memory().bytes_max()) +
           "), and this connection " + what_it_does + ": " + memory_text();
  }

  void close() {
    error_code ignored;
    socket_.close(ignored);
    send_queue_.clear();  // its values belong to the store
    server_.store_->memory().remove(std::exchange(counted_bytes_, 0));
  }

  void end() {
    close();
    server_.forget(id_);
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
        if (send_queue_.bytes() >= kOutputBytesMax) server_.flush();
        if (send_queue_.bytes() >= kOutputBytesMax) {
          unread_.assign(bytes);  // until the client has read some of its answers
          is_paused_ = true;
          require_memory();
          return false;
        }
        auto command = parser_.next(bytes);
        if (!command) break;
        count_memory();  // the command is about to be stored
        server_.apply(id_, std::move(*command));
      }
      server_.flush();
      require_memory();
      return true;
    } catch (const StoreFull& full) {
      refuse(kMemoryIsFull, full);
    } catch (const StoreError& error) {
      refuse("store: command refused", error);
    }
    return false;
  }

  void refuse(const char* reason, const StoreError& error) {
    server_.flush();  // what came before has its answers, and wakes others
    server_.warn(reason, peer_, "closed the connection from " + peer_ + ": " + error.what());
    end();
  }

  // Throws StoreError where this connection holds too much, or closes others that hold more.
  void require_memory() {
    count_memory();
    if (counted_bytes_ > kHoldingBytesKept &&
        counted_bytes_ + server_.store_->wait_bytes(id_) > share_bytes(server_.options_)) {
      throw StoreError("it holds more than its share of the store's memory, " +
                       size_text(share_bytes(server_.options_)) + ": " + memory_text());
    }
    if (server_.store_->memory().has_room(0) || server_.make_room(id_, 0)) return;
    throw StoreFull(memory_text_when_full("asks for more"), 0);
  }

  void write_when_ready() {
    socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](error_code error) {
      if (!self->socket_.is_open()) return;
      if (error) return self->end();
      self->write_ready();
    });
  }

  void write_ready() {
    if (write()) return end();
    count_memory();
    if (!send_queue_.is_empty()) return write_when_ready();
    is_writing_ = false;
    server_.give_back_memory();
    if (std::exchange(is_paused_, false) && take_in(std::exchange(unread_, {}))) read_when_ready();
  }

  // Writes what fits into the socket's buffer.
  error_code write() {
    error_code error;
    while (!send_queue_.is_empty()) {
      const auto parts = send_queue_.front(server_.scratch_);
      const std::size_t count =
          parts.size() == 1 ? socket_.write_some(asio::buffer(parts[0]), error) : write_parts(parts, error);
      send_queue_.consume(count);
      if (error == asio::error::would_block || error == asio::error::interrupted) return {};
      if (error) return error;
    }
    return {};
  }

  std::size_t write_parts(std::span<const std::string_view> parts, error_code& error) {
    std::array<asio::const_buffer, std::tuple_size_v<decltype(SendQueue::Scratch::parts)>> buffers;
    std::transform(parts.begin(), parts.end(), buffers.begin(),
                   [](std::string_view part) { return asio::buffer(part); });
    return socket_.write_some(std::span(buffers.data(), parts.size()), error);
  }

  Impl& server_;
  const ConnectionId id_;
  tcp::socket socket_;
  const std::string peer_;
  CommandParser parser_;
  std::array<char, kFirstBytes> first_bytes_;
  SendQueue send_queue_;      // to be written
  bool is_writing_ = false;   // it did not fit, and waits for room
  bool is_answered_ = false;  // since it was read from last
  bool is_paused_ = false;
  std::string unread_;             // while paused: bytes that came but were not looked at
  std::size_t counted_bytes_ = 0;  // in the budget
};

Server::Impl::Impl(asio::io_context& io, ServerOptions options)
    : io_(io),
      options_(std::move(options)),
      access_(allow_list(options_)),
      store_(std::in_place, store_options(options_)) {}

void Server::Impl::adopt(base::UniqueFd socket, const sockaddr_storage& peer) {
  if (is_stopped_) return;
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) return;
  const auto source = base::address_of(peer);
  const auto address = source.text();
  if (const auto why = access_.refusal(peer, local))
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
  if (!make_room(id, kConnectionBytes)) {
    return warn(kMemoryIsFull, address,
                "refused a connection from " + address + ": its memory is full" + memory_hint());
  }
  const auto connection = std::make_shared<Connection>(*this, id, std::move(stream), address);
  connection->count_memory();
  connections_.emplace(id, connection);
  tell_count();
  connection->read_when_ready();
}

void Server::Impl::apply(ConnectionId from, Command&& command) {
  for (Answer& answer : step(from, std::move(command))) connections_.at(answer.to)->send(std::move(answer));
}

std::vector<Answer> Server::Impl::step(ConnectionId from, Command&& command) {
  while (true) {
    try {
      return store_->step(from, std::move(command));
    } catch (const StoreFull& full) {
      if (!make_room(from, full.bytes_needed())) {
        throw StoreFull(full.what() + memory_hint(), full.bytes_needed());
      }
    }
  }
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
  store_->disconnected(connection);
  connections_.erase(connection);
  tell_count();
  give_back_memory();
}

// Closes those that hold the most until there is room for what `asker` asks for; false where the asker itself holds the
// most, or none holds much.
bool Server::Impl::make_room(ConnectionId asker, std::size_t bytes) {
  while (!store_->memory().has_room(bytes)) {
    flush();  // so that no answer is under way to a connection that is closed here
    Holding own{asker, bytes};
    std::vector<Holding> others;
    for (const auto& [id, connection] : connections_) {
      if (id == asker) {
        own.bytes += held_bytes(*connection);
      } else {
        others.push_back({id, held_bytes(*connection)});
      }
    }
    const auto chosen = connection_to_close(own, others);
    if (!chosen) return false;
    const auto connection = connections_.at(*chosen);
    warn(kMemoryIsFull, connection->peer(),
         "closed the connection from " + connection->peer() + ": " +
             connection->memory_text_when_full("holds the most"));
    connection->end();
  }
  return true;
}

// What would be free if the connection were closed. Values that the store has dropped are looked for only where they
// are much, because that takes long.
std::size_t Server::Impl::held_bytes(const Connection& connection) {
  const auto& memory = store_->memory();
  const bool is_much_dropped = memory.dropped_bytes() > memory.bytes_max() / 8;
  return connection.counted_bytes() + store_->wait_bytes(connection.id()) +
         (is_much_dropped ? connection.send_queue().dropped_value_bytes() : 0);
}

// To the system: the allocator keeps most of what is returned to it.
void Server::Impl::give_back_memory() {
  if (store_->memory().take_returned_bytes(kReturnedBytesMax) > 0) ::malloc_trim(0);
}

void Server::Impl::drop_all() {
  const std::size_t used_bytes = store_->memory().used_bytes();
  for (const auto& [id, connection] : connections_) connection->close();
  connections_.clear();
  tell_count();
  store_.emplace(store_options(options_));
  if (used_bytes >= kReturnedBytesMax) ::malloc_trim(0);
}

void Server::Impl::stop() {
  is_stopped_ = true;
  drop_all();
}

Server::Server(asio::io_context& io, ServerOptions options) : impl_(std::make_unique<Impl>(io, std::move(options))) {}

Server::~Server() { stop(); }

void Server::adopt(base::UniqueFd socket, const sockaddr_storage& peer) { impl_->adopt(std::move(socket), peer); }

void Server::put(const std::string& key, const std::string& value) { impl_->put(key, value); }

void Server::allow(const std::vector<std::string>& blocks) { impl_->allow(blocks); }

void Server::begin_round(std::set<base::Address> members) { impl_->begin_round(std::move(members)); }

void Server::stop() { impl_->stop(); }

}  // namespace ddp::store
