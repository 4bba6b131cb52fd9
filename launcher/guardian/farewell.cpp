#include "launcher/guardian/farewell.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/address.hpp"
#include "base/host_and_port.hpp"
#include "base/unique_fd.hpp"

namespace ddp::launcher::guardian {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLimit{1};

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(left > 0 ? left : 0);
}

bool waits_for(int socket, short what, Clock::time_point deadline) {
  pollfd wait{socket, what, 0};
  return ::poll(&wait, 1, milliseconds_until(deadline)) == 1;
}

std::ptrdiff_t count_open(const std::vector<pollfd>& waits) {
  return std::count_if(waits.begin(), waits.end(), [](const pollfd& wait) { return wait.fd >= 0; });
}

// It may take a while to be connected.
base::UniqueFd begin_connection(const Farewell::Target& to) {
  const auto numeric = base::parse_address(to.address);
  if (!numeric) return {};
  const auto target = base::socket_address(*numeric, to.port);
  base::UniqueFd socket(::socket(target.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&target), base::length_of(target)) != 0 &&
                  errno != EINPROGRESS))
    return {};
  return socket;
}

// The connection to membership: each call ends at the deadline, with false or 0.
class Connection {
 public:
  Connection(base::UniqueFd socket, const security::Tls* tls, Clock::time_point deadline)
      : socket_(std::move(socket)),
        session_(tls == nullptr ? nullptr : tls->begin(socket_.get(), security::Tls::Side::client)),
        deadline_(deadline) {}

  bool shake_hands() const {
    return !session_ || completes([&] { return session_->shake_hands(); });
  }

  bool write(std::string_view text) const {
    if (!session_)
      return ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
    std::size_t bytes = 0;  // it fits into one record
    return completes([&] { return session_->write_some(text.data(), text.size()); }, &bytes) && bytes == text.size();
  }

  std::size_t read(char* room, std::size_t size) const {
    std::size_t bytes = 0;
    if (session_) {
      completes([&] { return session_->read_some(room, size); }, &bytes);
    } else if (waits_for(socket_.get(), POLLIN, deadline_)) {
      const auto count = ::recv(socket_.get(), room, size, 0);
      bytes = count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    return bytes;
  }

 private:
  using Want = security::TlsSession::Want;

  template <class Call>
  bool completes(Call call, std::size_t* bytes = nullptr) const {
    while (true) {
      const security::TlsSession::Result result = call();
      if (bytes != nullptr) *bytes = result.bytes;
      if (result.want == Want::nothing) return !result.error;
      if (!waits_for(socket_.get(), result.want == Want::read ? POLLIN : POLLOUT, deadline_)) return false;
    }
  }

  const base::UniqueFd socket_;
  const std::unique_ptr<security::TlsSession> session_;  // none: it is plain
  const Clock::time_point deadline_;
};

// Returns whether it is known there.
bool say(const Farewell& farewell, const Farewell::Target& to, base::UniqueFd socket, const security::Tls* tls,
         Clock::time_point deadline) {
  const Connection connection(std::move(socket), tls, deadline);
  auto request = "POST /v1/farewell/" + farewell.node_key +
                 " HTTP/1.1\r\nHost: " + base::host_and_port(to.address, to.port) + "\r\nContent-Length: 0\r\n";
  if (farewell.signal_number != 0) request += "Killed-By-Signal: " + std::to_string(farewell.signal_number) + "\r\n";
  request += "\r\n";
  if (!connection.shake_hands() || !connection.write(request)) return false;
  constexpr std::string_view kKnown = "HTTP/1.1 200";
  char answer[kKnown.size()] = {};
  std::size_t length = 0, count = 0;
  while (length < sizeof answer && (count = connection.read(answer + length, sizeof answer - length)) > 0)
    length += count;
  return std::string_view(answer, length) == kKnown;
}

}  // namespace

// Those that answer first are told first: one that is out of reach holds up nobody. One that says nothing has its share
// of the time.
bool say_farewell(const Farewell& farewell, const security::Tls* tls) {
  const auto deadline = Clock::now() + kLimit;
  std::vector<base::UniqueFd> sockets;
  std::vector<pollfd> waits;
  for (const auto& to : farewell.to) {
    sockets.push_back(begin_connection(to));
    waits.push_back({sockets.back() ? sockets.back().get() : -1, POLLOUT, 0});
  }
  bool is_known = false;
  for (auto left = count_open(waits); left > 0; left = count_open(waits)) {
    if (::poll(waits.data(), waits.size(), milliseconds_until(deadline)) <= 0) break;
    for (std::size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].fd < 0 || waits[i].revents == 0) continue;
      waits[i].fd = -1;
      const auto now = Clock::now();
      const auto share = (deadline - now) / (count_open(waits) + 1);
      is_known = say(farewell, farewell.to[i], std::move(sockets[i]), tls, now + share) || is_known;
    }
  }
  return is_known;
}

}  // namespace ddp::launcher::guardian
