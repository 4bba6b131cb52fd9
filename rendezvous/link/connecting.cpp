#include "rendezvous/link/connecting.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "base/address.hpp"
#include "base/connection_closed.hpp"

namespace ddp::rendezvous {

namespace asio = boost::asio;
using asio::awaitable;
using boost::system::error_code;
using How = Session::How;

// The coroutine, and what it waits for. The handler of co_spawn() keeps this object while the coroutine lives.
struct Connecting::Attempt {
  struct Connected {
    base::UniqueFd socket;
    int error = 0;  // as errno; 0: the socket is connected
  };

  Attempt(asio::io_context& loop, EndpointAddresses& endpoint, const Session::Target& target, Options what)
      : io(loop), addresses(endpoint), to(target), options(std::move(what)), limit(loop) {}

  awaitable<Outcome> run();
  awaitable<std::optional<std::string>> look_up();
  awaitable<Connected> connect(sockaddr_storage address);
  awaitable<Outcome> shake_hands(base::UniqueFd connected, sockaddr_storage address);
  awaitable<std::optional<Channel::Closed>> opened();
  std::vector<sockaddr_storage> targets() const;
  void end();

  asio::io_context& io;
  EndpointAddresses& addresses;  // not to be used once is_over
  const Session::Target to;
  Options options;
  asio::steady_timer limit;
  std::shared_ptr<asio::posix::stream_descriptor> connecting;
  std::unique_ptr<Channel> channel;  // during its handshakes
  bool is_over = false;              // to be read after each wait: the next attempt may have begun
};

awaitable<Connecting::Outcome> Connecting::Attempt::run() {
  if (is_over) co_return Unreached();  // before it began: outside the loop, co_spawn() only posts
  // The other ports of a host that was just looked up need no look-up.
  if (to.address.empty() && (to.port == 0 || addresses.known().empty())) {
    const auto error = co_await look_up();
    if (is_over) co_return Unreached();
    if (error) {
      addresses.forget();
      co_return Unreached{How::silent, *error, {}, true};
    }
  }
  // One address that refuses tells more about a host than another address that is silent.
  Unreached unreached;
  const auto candidates = targets();
  for (const auto& address : candidates) {
    auto connected = co_await connect(address);
    if (is_over) co_return Unreached();
    if (connected.error == 0) co_return co_await shake_hands(std::move(connected.socket), address);
    const auto how = connected.error == ECONNREFUSED                 ? How::refused
                     : base::says_connection_closed(connected.error) ? How::closed
                                                                     : How::silent;
    unreached.how = std::min(unreached.how, how);
    unreached.why = std::string(std::strerror(connected.error)) + " (" + base::address_of(address).text() + ")";
  }
  co_return unreached;
}

// Returns why there is no address, if there is none.
awaitable<std::optional<std::string>> Connecting::Attempt::look_up() {
  if (!addresses.has_answer()) {
    limit.expires_after(options.limit);
    try {
      addresses.ask([this] { limit.cancel(); });
    } catch (const std::exception& error) {  // no thread or no descriptor is left
      addresses.leave();
      co_return error.what();
    }
    co_await limit.async_wait(asio::as_tuple(asio::use_awaitable));
    if (is_over) co_return std::nullopt;
    addresses.leave();
  }
  if (!addresses.has_answer()) co_return kLookUpGoesOn;
  co_return addresses.take_answer();
}

std::vector<sockaddr_storage> Connecting::Attempt::targets() const {
  // Messages carry numeric addresses only.
  if (!to.address.empty()) return {base::socket_address(base::parse_address(to.address).value(), to.port)};
  auto out = addresses.known();
  for (auto& address : out)
    address = base::with_port(address, static_cast<std::uint16_t>(addresses.endpoint().port + to.port));
  return out;
}

awaitable<Connecting::Attempt::Connected> Connecting::Attempt::connect(sockaddr_storage address) {
  Connected out;
  out.socket.reset(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!out.socket ||
      ::connect(out.socket.get(), reinterpret_cast<const sockaddr*>(&address), base::length_of(address)) != 0)
    out.error = errno;
  if (out.error != EINPROGRESS) co_return out;
  const auto waiting = std::make_shared<asio::posix::stream_descriptor>(io, out.socket.release());
  connecting = waiting;
  limit.expires_after(options.limit);
  limit.async_wait([waiting](error_code error) {
    error_code ignored;
    if (!error) waiting->cancel(ignored);
  });
  const auto [error] =
      co_await waiting->async_wait(asio::posix::stream_descriptor::wait_write, asio::as_tuple(asio::use_awaitable));
  connecting.reset();
  limit.cancel();
  out.socket.reset(waiting->release());
  socklen_t length = sizeof out.error;
  if (error)
    out.error = ETIMEDOUT;
  else
    ::getsockopt(out.socket.get(), SOL_SOCKET, SO_ERROR, &out.error, &length);
  co_return out;
}

awaitable<Connecting::Outcome> Connecting::Attempt::shake_hands(base::UniqueFd connected, sockaddr_storage address) {
  Reached reached;
  reached.peer = base::address_of(address).text();
  reached.duplicate.reset(::fcntl(connected.get(), F_DUPFD_CLOEXEC, 3));
  channel =
      std::make_unique<Channel>(io, std::move(connected), Channel::Side::client, options.channel, Channel::Handlers());
  const auto closed = co_await opened();
  if (closed) co_return unreached(*closed, reached.peer);
  reached.channel = std::move(channel);
  co_return std::move(reached);
}

// Completes from within the channel's handler, so that no message can come before the caller sets its own handlers. If
// end() closes the channel, the coroutine is destroyed where it waits.
awaitable<std::optional<Channel::Closed>> Connecting::Attempt::opened() {
  return asio::async_initiate<const asio::use_awaitable_t<>, void(std::optional<Channel::Closed>)>(
      [this](auto handler) {
        const auto once = std::make_shared<decltype(handler)>(std::move(handler));
        channel->hand_over({[once] { std::move (*once)(std::nullopt); },
                            {},
                            [once](const Channel::Closed& how) { std::move (*once)(how); }});
      },
      asio::use_awaitable);
}

void Connecting::Attempt::end() {
  if (std::exchange(is_over, true)) return;
  addresses.leave();
  limit.cancel();
  error_code ignored;
  if (connecting) connecting->close(ignored);
  channel.reset();
}

Connecting::Connecting(asio::io_context& io, EndpointAddresses& addresses, const Session::Target& to, Options options,
                       std::function<void(Outcome outcome)> done)
    : attempt_(std::make_shared<Attempt>(io, addresses, to, std::move(options))) {
  asio::co_spawn(io, attempt_->run(),
                 [attempt = attempt_, done = std::move(done)](std::exception_ptr error, Outcome outcome) {
                   if (error) std::rethrow_exception(error);
                   if (!std::exchange(attempt->is_over, true)) done(std::move(outcome));
                 });
}

Connecting::~Connecting() { attempt_->end(); }

Unreached unreached(const Channel::Closed& how, const std::string& peer) {
  return {how.by_peer ? How::closed : How::silent, how.why + " (" + peer + ")", how.try_this, false, how.is_stranger};
}

}  // namespace ddp::rendezvous
