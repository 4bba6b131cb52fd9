#include "rendezvous/port/port.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/address.hpp"
#include "base/host_and_port.hpp"
#include "ddp/error.hpp"

namespace ddp::port {

namespace asio = boost::asio;
using asio::posix::stream_descriptor;
using boost::system::error_code;

namespace {

constexpr unsigned char kStoreByte = 0x00;  // VALIDATE, the store's first command
constexpr unsigned char kTlsByte = 0x16;    // a handshake record

constexpr int kTakeInCountMax = 64;     // connections, before others get their turn
constexpr int kQueueCountMax = 65'536;  // of the kernel's queue, about; its limit is in net.core.somaxconn
constexpr std::chrono::milliseconds kAcceptPause{100};  // when descriptors or memory have run out
constexpr int kSharedPortTries = 16;                    // to find one that is free on several addresses
constexpr int kListenTries = 16;                        // against others that open the same port at the same time

struct BoundSocket {
  base::UniqueFd socket;  // empty where it failed
  int error = 0;          // why
};

BoundSocket bind_once(const base::Address& address, std::uint16_t port, bool& is_race) {
  const auto name = base::socket_address(address, port);
  const bool is_v4 = address.is_v4();

  // Asio would leave the descriptor open in what ddprun starts.
  base::UniqueFd socket(::socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, off = 0;
  const bool ok = socket && ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                  // :: takes IPv4 too, as in the reference.
                  (is_v4 || ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0) &&
                  ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&name), base::length_of(name)) == 0;
  if (!ok) return {{}, errno};
  if (::listen(socket.get(), SOMAXCONN) == 0) return {std::move(socket), 0};
  is_race = errno == EADDRINUSE;
  return {{}, errno};
}

// Of several that have bound one port and then listen at the same moment the kernel may refuse all (each announces
// itself before it looks for the others, inet_csk_listen_start): they try again, and whoever finds a listener is
// refused by bind().
BoundSocket bind_to(const base::Address& address, std::uint16_t port) {
  BoundSocket bound;
  bool is_race = true;
  for (int i = 0; i < kListenTries && std::exchange(is_race, false); ++i) bound = bind_once(address, port, is_race);
  return bound;
}

std::uint16_t port_of(const base::UniqueFd& socket) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  sockaddr_in6 v6;  // the port is at the same place in both families
  std::memcpy(&v6, &bound, sizeof v6);
  return ntohs(v6.sin6_port);
}

struct Bound {
  std::vector<base::UniqueFd> sockets;  // empty where it failed
  std::uint16_t port = 0;
  int error = 0;          // why it failed
  base::Address address;  // which one
};

// All of `addresses` with one port number.
Bound bind_all(const std::vector<base::Address>& addresses, std::uint16_t port) {
  Bound bound;
  bound.port = port;
  for (const auto& address : addresses) {
    auto [socket, error] = bind_to(address, bound.port);
    if (!socket) return {{}, bound.port, error, address};
    bound.port = port_of(socket);
    bound.sockets.push_back(std::move(socket));
  }
  return bound;
}

// The first port from `first` to `last` that is free on all of them.
Bound bind_in_range(const std::vector<base::Address>& addresses, std::uint16_t first, std::uint16_t last) {
  Bound bound;
  if (first == 0) {
    // Free on the first address may be taken on the next.
    for (int i = 0; i < kSharedPortTries && bound.sockets.empty(); ++i) {
      bound = bind_all(addresses, 0);
      if (bound.error != 0 && bound.error != EADDRINUSE) break;
    }
    return bound;
  }
  for (unsigned port = first; port <= last; ++port) {
    bound = bind_all(addresses, static_cast<std::uint16_t>(port));
    if (bound.error != EADDRINUSE && bound.error != EACCES) break;  // some ports of a range may be root's
  }
  return bound;
}

std::string where_text(const base::Address& address, const PortOptions& options) {
  const auto range_end = options.first != options.last ? "-" + std::to_string(options.last) : "";
  return base::host_and_port(address.text(), std::to_string(options.first) + range_end);
}

Bound bind_as_told(const PortOptions& options) {
  if (options.last < options.first || (options.first == 0 && options.last != 0)) {
    throw InvalidArgument("no range of ports: " + std::to_string(options.first) + " to " +
                          std::to_string(options.last));
  }
  std::vector<base::Address> addresses;
  for (const auto& text : options.addresses) {
    const auto address = base::parse_address(text);
    if (!address) throw InvalidArgument("can't listen on \"" + text + "\": that is no IPv4 or IPv6 address");
    addresses.push_back(*address);
  }
  Bound bound;
  if (addresses.empty()) {
    bound = bind_in_range({*base::parse_address("::")}, options.first, options.last);
    const bool has_no_v6 = bound.error == EAFNOSUPPORT || bound.error == EADDRNOTAVAIL;
    if (has_no_v6) bound = bind_in_range({*base::parse_address("0.0.0.0")}, options.first, options.last);
  } else {
    bound = bind_in_range(addresses, options.first, options.last);
  }
  if (bound.sockets.empty()) {
    const auto what = "can't listen on " + where_text(bound.address, options) + ": " + std::strerror(bound.error);
    if (bound.error == EADDRINUSE) throw PortsInUse(what);
    throw Error(what);
  }
  return bound;
}

std::string text_of(const sockaddr_storage& peer) { return base::address_of(peer).text(); }

std::string hex_byte(unsigned char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  return {'0', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

}  // namespace

class Port::Impl : public std::enable_shared_from_this<Port::Impl> {
 public:
  Impl(asio::io_context& io, PortOptions options, Handlers handlers);

  void start();
  void drop_pending();
  void stop();
  std::uint16_t number() const { return number_; }
  std::vector<int> descriptors();

 private:
  struct Accepted {
    base::UniqueFd socket;
    sockaddr_storage peer{};
  };

  struct Listener {
    stream_descriptor socket;
    asio::steady_timer pause;
    std::deque<Accepted> accepted{};  // their first byte has not been looked at
  };

  // A connection that has not sent its first byte. Its handlers hold it; each asks whether it is still on the list,
  // because both may be due at once.
  struct Silent {
    Silent(asio::io_context& io, const sockaddr_storage& who) : socket(io), timer(io), peer(who) {}
    stream_descriptor socket;
    asio::steady_timer timer;
    const sockaddr_storage peer;
    std::list<std::shared_ptr<Silent>>::iterator place{};
    bool is_listed = false;
  };

  void accept_when_ready(Listener& listener);
  void accept_ready(Listener& listener);
  int empty_queue(Listener& listener);
  base::UniqueFd accept_next(Listener& listener, sockaddr_storage& peer);
  void take_in(base::UniqueFd socket, const sockaddr_storage& peer);
  void await_first_byte(base::UniqueFd socket, const sockaddr_storage& peer);
  void first_byte_came(Silent& silent);
  base::UniqueFd take_off(Silent& silent);
  void turn_away(Silent& silent, const char* reason, const std::string& why);
  void warn(const char* reason, const std::string& source, const std::string& what);
  void hand_over(unsigned char first_byte, base::UniqueFd socket, const sockaddr_storage& peer);

  asio::io_context& io_;
  PortOptions options_;
  Handlers handlers_;
  std::uint16_t number_ = 0;
  std::list<Listener> listeners_;
  std::list<std::shared_ptr<Silent>> silent_;  // the oldest first
  bool is_stopped_ = false;
};

Port::Impl::Impl(asio::io_context& io, PortOptions options, Handlers handlers)
    : io_(io), options_(std::move(options)), handlers_(std::move(handlers)) {
  auto bound = bind_as_told(options_);
  number_ = bound.port;
  for (auto& socket : bound.sockets) {
    listeners_.push_back({stream_descriptor(io_, socket.get()), asio::steady_timer(io_)});
    socket.release();
  }
}

std::vector<int> Port::Impl::descriptors() {
  std::vector<int> out;
  for (auto& listener : listeners_) out.push_back(listener.socket.native_handle());
  return out;
}

void Port::Impl::start() {
  for (auto& listener : listeners_) accept_when_ready(listener);
}

void Port::Impl::accept_when_ready(Listener& listener) {
  listener.socket.async_wait(stream_descriptor::wait_read, [self = shared_from_this(), &listener](error_code error) {
    if (!error && !self->is_stopped_) self->accept_ready(listener);
  });
}

// Accepts all connections before it takes in a few: to accept is cheap, and the kernel drops connections that find its
// queue full. Their clients try again after a second or more.
void Port::Impl::accept_ready(Listener& listener) {
  const int error = empty_queue(listener);
  const bool is_idle = listener.accepted.empty();
  for (int count = 0; count < kTakeInCountMax && !listener.accepted.empty(); ++count) {
    auto [socket, peer] = std::move(listener.accepted.front());
    listener.accepted.pop_front();
    take_in(std::move(socket), peer);
    if (is_stopped_) return;
  }
  if (!is_idle) {
    // More are likely. In a burst epoll would report the listener after thousands of other sockets.
    asio::post(io_, [self = shared_from_this(), &listener] {
      if (!self->is_stopped_) self->accept_ready(listener);
    });
    return;
  }
  if (error == 0) return accept_when_ready(listener);
  // Most likely descriptors have run out. The peer stays in the queue and the socket readable: without a pause this
  // would spin.
  warn("connection not taken in", "",
       std::string("can't take in a connection: ") + std::strerror(error) + "; it goes on trying");
  listener.pause.expires_after(kAcceptPause);
  listener.pause.async_wait([self = shared_from_this(), &listener](error_code failed) {
    if (!failed && !self->is_stopped_) self->accept_when_ready(listener);
  });
}

// Moves the connections of the kernel's queue to `accepted`, as far as there is room. Returns 0, or errno of the
// connection that can't be had.
int Port::Impl::empty_queue(Listener& listener) {
  while (listener.accepted.size() < options_.accepted_count_max) {
    Accepted next;
    next.socket = accept_next(listener, next.peer);
    if (!next.socket) return errno == EAGAIN ? 0 : errno;
    listener.accepted.push_back(std::move(next));
  }
  return 0;
}

// The first in the queue. Empty, with errno, where there is none or it can't be had.
base::UniqueFd Port::Impl::accept_next(Listener& listener, sockaddr_storage& peer) {
  const int fd = listener.socket.native_handle();
  while (true) {
    socklen_t length = sizeof peer;
    base::UniqueFd socket(::accept4(fd, reinterpret_cast<sockaddr*>(&peer), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket || (errno != EINTR && errno != ECONNABORTED)) return socket;
  }
}

void Port::Impl::take_in(base::UniqueFd socket, const sockaddr_storage& peer) {
  unsigned char byte = 0;
  const ssize_t count = ::recv(socket.get(), &byte, 1, MSG_PEEK);
  if (count > 0) return hand_over(byte, std::move(socket), peer);
  if (count < 0 && errno == EAGAIN) await_first_byte(std::move(socket), peer);
  // Else it only tried the port.
}

void Port::Impl::await_first_byte(base::UniqueFd socket, const sockaddr_storage& peer) {
  if (silent_.size() >= options_.silent_count_max) {
    turn_away(*silent_.front(), "too many silent connections",
              "said nothing, and others want its place: " + std::to_string(silent_.size()) +
                  " connections have not said what they want");
  }
  const auto silent = std::make_shared<Silent>(io_, peer);
  error_code error;
  silent->socket.assign(socket.get(), error);
  if (error) return warn("connection not taken in", text_of(peer), "can't watch a connection: " + error.message());
  socket.release();
  silent->place = silent_.insert(silent_.end(), silent);
  silent->is_listed = true;
  silent->socket.async_wait(stream_descriptor::wait_read, [self = shared_from_this(), silent](error_code) {
    if (silent->is_listed) self->first_byte_came(*silent);
  });
  silent->timer.expires_after(options_.first_byte_limit);
  silent->timer.async_wait([self = shared_from_this(), silent](error_code) {
    if (silent->is_listed) self->turn_away(*silent, "silent connection", "said nothing for too long");
  });
}

void Port::Impl::first_byte_came(Silent& silent) {
  auto socket = take_off(silent);
  unsigned char byte = 0;
  if (::recv(socket.get(), &byte, 1, MSG_PEEK) > 0) hand_over(byte, std::move(socket), silent.peer);
}

base::UniqueFd Port::Impl::take_off(Silent& silent) {
  silent.is_listed = false;
  silent_.erase(silent.place);
  silent.timer.cancel();
  return base::UniqueFd(silent.socket.release());
}

void Port::Impl::turn_away(Silent& silent, const char* reason, const std::string& why) {
  const auto source = text_of(silent.peer);
  warn(reason, source, "closed the connection from " + source + ": it " + why);
  take_off(silent);
}

void Port::Impl::warn(const char* reason, const std::string& source, const std::string& what) {
  if (options_.warn) options_.warn({reason, source, "port " + std::to_string(number_) + " " + what});
}

void Port::Impl::hand_over(unsigned char first_byte, base::UniqueFd socket, const sockaddr_storage& peer) {
  const bool is_letter = (first_byte >= 'A' && first_byte <= 'Z') || (first_byte >= 'a' && first_byte <= 'z');
  const Handler* handler = nullptr;
  std::string what;
  if (first_byte == kStoreByte) {
    handler = &handlers_.store, what = "a client of a store";
  } else if (first_byte == kTlsByte) {
    handler = &handlers_.tls, what = "a TLS client";
  } else if (is_letter) {
    handler = &handlers_.http, what = "an HTTP client";
  } else {
    what =
        "something that speaks neither the store's protocol of PyTorch 2.2 or later nor HTTP nor TLS (its first byte "
        "is " +
        hex_byte(first_byte) + ")";
  }
  if (handler != nullptr && *handler) return (*handler)(std::move(socket), peer);
  const auto source = text_of(peer);
  warn("protocol that is not served", source,
       "turned away " + what + " from " + source + (handler != nullptr ? "; nothing here serves it" : ""));
}

void Port::Impl::drop_pending() {
  while (!silent_.empty()) take_off(*silent_.front());
  sockaddr_storage peer{};
  for (auto& listener : listeners_) {
    listener.accepted.clear();
    for (int count = 0; count < kQueueCountMax && accept_next(listener, peer); ++count) {
    }
  }
}

void Port::Impl::stop() {
  if (std::exchange(is_stopped_, true)) return;
  while (!silent_.empty()) take_off(*silent_.front());
  for (auto& listener : listeners_) {
    error_code ignored;
    listener.socket.close(ignored);
    listener.accepted.clear();
    listener.pause.cancel();
  }
}

Port::Port(asio::io_context& io, PortOptions options, Handlers handlers)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(handlers))) {
  impl_->start();
}

Port::~Port() { stop(); }

std::uint16_t Port::number() const { return impl_->number(); }

std::vector<int> Port::descriptors() const { return impl_->descriptors(); }

void Port::drop_pending() { impl_->drop_pending(); }

void Port::stop() { impl_->stop(); }

}  // namespace ddp::port
