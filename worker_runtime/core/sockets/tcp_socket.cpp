#include "worker_runtime/core/sockets/tcp_socket.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "base/closed_in_child.hpp"
#include "base/throw_errno.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"

namespace ddp::core {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kUnidentifiedMax = 256;  // without a RankHello yet; more than that close the oldest
constexpr std::ptrdiff_t kClosedAtOnce = kUnidentifiedMax / 2;
constexpr int kBacklog = 1024;
constexpr int kProbeSeconds = 5;
constexpr const char* kLoopbackAddress = "127.0.0.1";
// Of no host (RFC 5737, RFC 3849): the way there is the default route.
constexpr const char* kDocumentationAddresses[] = {"192.0.2.1", "2001:db8::1"};
constexpr std::uint16_t kDiscardPort = 9;

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  std::uint16_t port() const {  // of an internet address
    return ntohs(family() == AF_INET ? reinterpret_cast<const sockaddr_in*>(&storage)->sin_port
                                     : reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  }
};

// An IPv4 address that came in an IPv6 one is an IPv4 address.
std::string text_of(const Address& address) {
  std::array<char, INET6_ADDRSTRLEN + IF_NAMESIZE + 1> text{};
  if (::getnameinfo(address.get(), address.bytes, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  const std::string prefix = "::ffff:";
  const std::string plain = text.data();
  return plain.starts_with(prefix) && plain.find('.') != std::string::npos ? plain.substr(prefix.size()) : plain;
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

std::string local_address(int socket) {
  Address address;
  if (::getsockname(socket, address.get(), &address.bytes) != 0) base::throw_errno("getsockname");
  return text_of(address);
}

std::uint16_t port_of(int socket) {
  Address address;
  if (::getsockname(socket, address.get(), &address.bytes) != 0) base::throw_errno("getsockname");
  return address.port();
}

// Of an interface: of the wanted family where it has one, and none that means something on one link only.
std::string address_of_interface(const std::string& name, int family_wanted) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) base::throw_errno("getifaddrs");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::string found;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || name != each->ifa_name) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Address address;
    address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, each->ifa_addr, address.bytes);
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_addr)) {
      continue;
    }
    if (found.empty() || family == family_wanted) found = text_of(address);
    if (family == family_wanted) break;
  }
  if (!found.empty()) return found;
  throw Error("no address on the interface '" + name +
              "'\nwhere: DDP_SOCKET_IFNAME\ntry:   the name of an interface that `ip address` shows with one");
}

// Throws Error for text that is no numeric address.
Address numeric(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (::getaddrinfo(endpoint.address.c_str(), std::to_string(endpoint.port).c_str(), &hints, &list) != 0) {
    throw Error("'" + endpoint.address + "' is no numeric address");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  Address address;
  address.bytes = list->ai_addrlen;
  std::memcpy(&address.storage, list->ai_addr, list->ai_addrlen);
  return address;
}

TcpSocket make_tcp_socket(int family) {
  base::UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) base::throw_errno("socket");
  return TcpSocket(std::move(fd));
}

void set_option(int socket, int level, int name, int value) {
  if (::setsockopt(socket, level, name, &value, sizeof value) != 0) base::throw_errno("setsockopt");
}

void send_at_once(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Whether it is bound now; the system says no to a port that is taken.
bool bind_to(int socket, const Endpoint& endpoint) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const Address address = numeric(endpoint);
  if (::bind(socket, address.get(), address.bytes) == 0) return true;
  if (errno != EADDRINUSE && errno != EACCES) base::throw_errno("bind");
  return false;
}

bool wait_for(int socket, short events, base::Deadline& deadline) {
  while (true) {
    pollfd polled{socket, events, 0};
    poll_until({&polled, 1}, deadline);
    if (polled.revents != 0) return true;
    if (deadline.passed(Clock::now())) return false;
  }
}

}  // namespace

TcpSocket::TcpSocket(base::UniqueFd fd) : fd_(std::move(fd)) {
  if (fd_) base::close_in_forked_children(fd_.get());
}

TcpSocket& TcpSocket::operator=(TcpSocket&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::move(other.fd_);
  }
  return *this;
}

TcpSocket::~TcpSocket() { reset(); }

void TcpSocket::reset() {
  if (fd_) base::keep_in_forked_children(fd_.get());
  fd_.reset();
}

NetworkOptions with_addresses_of(int store_socket, NetworkOptions options) {
  options.own_address = local_address(store_socket);
  options.store_address = peer_of(store_socket).address;
  return options;
}

NetworkOptions with_addresses_of_host(NetworkOptions options) {
  options.own_address = options.store_address = kLoopbackAddress;
  for (const char* elsewhere : kDocumentationAddresses) {
    const Address address = numeric({elsewhere, kDiscardPort});
    const base::UniqueFd socket(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.get(), address.get(), address.bytes) != 0) continue;  // nothing is sent
    options.own_address = options.store_address = local_address(socket.get());
    break;
  }
  return options;
}

Endpoint peer_of(int socket) {
  Address address;
  if (::getpeername(socket, address.get(), &address.bytes) != 0) base::throw_errno("getpeername");
  return {text_of(address), address.port()};
}

// Where the store is reached by loopback it is on this host, so the others reach this host where they reach the store.
Listener listen_tcp(const NetworkOptions& options) {
  const std::string& to_store = options.own_address;
  const int family = to_store.find(':') == std::string::npos ? AF_INET : AF_INET6;
  std::string address = options.interface.empty() ? to_store : address_of_interface(options.interface, family);
  const bool is_with_store = options.interface.empty() && is_loopback(address);
  if (is_with_store) address = "::";

  for (std::uint32_t port = options.port_min; port <= options.port_max; ++port) {
    Endpoint endpoint{address, static_cast<std::uint16_t>(port)};
    TcpSocket socket;
    try {
      socket = make_tcp_socket(numeric(endpoint).family());
    } catch (const std::system_error& error) {
      if (!is_with_store || error.code() != std::errc::address_family_not_supported) throw;
      address = endpoint.address = "0.0.0.0";  // a kernel without IPv6
      socket = make_tcp_socket(AF_INET);
    }
    const int off = 0;
    if (is_with_store) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!bind_to(socket.get(), endpoint)) continue;
    if (::listen(socket.get(), kBacklog) != 0) {
      if (errno == EADDRINUSE) continue;
      base::throw_errno("listen");
    }
    endpoint = {is_with_store ? "" : address, port_of(socket.get())};
    return {std::move(socket), endpoint};
  }
  throw Error("no port from " + std::to_string(options.port_min) + " to " + std::to_string(options.port_max) +
              " is free at " + address + "\nwhere: DDPRUN_PORT_RANGE\ntry:   a wider range");
}

void Acceptor::add_to(std::vector<pollfd>& polled) const {
  polled.push_back({listener_.get(), POLLIN, 0});
  for (const Unidentified& connection : unidentified_) polled.push_back({connection.socket.get(), POLLIN, 0});
}

std::vector<Acceptor::Arrival> Acceptor::take(std::span<const pollfd> polled) {
  std::vector<Arrival> arrivals;
  std::vector<Unidentified> silent;
  for (std::size_t i = 0; i < unidentified_.size(); ++i) {
    const Received received = polled[1 + i].revents == 0 ? Received::part : receive_hello(unidentified_[i]);
    if (received == Received::part) silent.push_back(std::move(unidentified_[i]));
    if (received == Received::hello) arrivals.push_back({unidentified_[i].hello, std::move(unidentified_[i].socket)});
  }
  unidentified_ = std::move(silent);
  if (polled[0].revents == 0) return arrivals;
  // All connections of one burst, as the ranks of a large job make it, are read before the oldest are closed. The
  // kernel queues what does not fit yet.
  if (unidentified_.size() == kUnidentifiedMax)
    unidentified_.erase(unidentified_.begin(), unidentified_.begin() + kClosedAtOnce);
  while (unidentified_.size() < kUnidentifiedMax) {
    base::UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!fd && errno != EAGAIN) base::throw_errno("accept");
    if (!fd) break;
    send_at_once(fd.get());
    unidentified_.push_back({TcpSocket(std::move(fd)), {}, 0});
  }
  return arrivals;
}

void Acceptor::close() {
  unidentified_.clear();
  ::shutdown(listener_.get(), SHUT_RDWR);  // ends the connections that are not yet accepted
}

Acceptor::Received Acceptor::receive_hello(Unidentified& connection) const {
  const auto bytes = std::as_writable_bytes(std::span(&connection.hello, 1));
  try {
    connection.received += receive_some(connection.socket.get(), bytes.subspan(connection.received));
  } catch (const ConnectionLost&) {
    return Received::protocol_error;
  }
  if (connection.received < bytes.size()) return Received::part;
  const RankHello& hello = connection.hello;
  unsigned char differs = 0;  // looks at every byte, so that no time tells how much of a guess was right
  for (std::size_t i = 0; i < hello.secret.size(); ++i) {
    differs |= static_cast<unsigned char>(hello.secret[i] ^ expected_.secret[i]);
  }
  const bool is_ours = hello.magic == expected_.magic && differs == 0 && hello.group == expected_.group;
  return is_ours ? Received::hello : Received::protocol_error;
}

TcpSocket connect_tcp(const Endpoint& endpoint, const RankHello& hello, base::Deadline& deadline) {
  const Address address = numeric(endpoint);
  TcpSocket socket = make_tcp_socket(address.family());
  if (::connect(socket.get(), address.get(), address.bytes) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) base::throw_errno("connect");
    if (!wait_for(socket.get(), POLLOUT, deadline)) {
      throw std::system_error(ETIMEDOUT, std::generic_category(), "connect");
    }
    int error = 0;
    socklen_t bytes = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) throw std::system_error(error, std::generic_category(), "connect");
  }
  send_at_once(socket.get());
  try {
    if (!send_all(socket.get(), std::as_bytes(std::span(&hello, 1)), deadline)) {
      throw std::system_error(ETIMEDOUT, std::generic_category(), "send");
    }
  } catch (const ConnectionLost&) {
    throw std::system_error(ECONNREFUSED, std::generic_category(), "send");
  }
  return socket;
}

void expect_signs_of_life(int socket, std::chrono::seconds silence_max) {
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kProbeSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, static_cast<int>(silence_max.count()) / kProbeSeconds);
}

void expect_progress(int socket, std::chrono::seconds silence_max) {
  expect_signs_of_life(socket, silence_max);
  const auto milliseconds = std::chrono::milliseconds(silence_max).count();
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(milliseconds));
}

std::size_t send_some(int socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno == EAGAIN) break;
    if (errno != EINTR) throw ConnectionLost();
  }
  return 0;
}

std::size_t receive_some(int socket, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) return static_cast<std::size_t>(count);
    if (count < 0 && errno == EAGAIN) break;
    if (count == 0 || errno != EINTR) throw ConnectionLost();
  }
  return 0;
}

bool send_all(int socket, std::span<const std::byte> bytes, base::Deadline& deadline) {
  while (true) {
    bytes = bytes.subspan(send_some(socket, bytes));
    if (bytes.empty()) return true;
    if (!wait_for(socket, POLLOUT, deadline)) return false;
  }
}

bool receive_all(int socket, std::span<std::byte> bytes, base::Deadline& deadline) {
  while (true) {
    bytes = bytes.subspan(receive_some(socket, bytes));
    if (bytes.empty()) return true;
    if (!wait_for(socket, POLLIN, deadline)) return false;
  }
}

}  // namespace ddp::core
