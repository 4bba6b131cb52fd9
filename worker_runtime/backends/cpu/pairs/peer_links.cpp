#include "worker_runtime/backends/cpu/pairs/peer_links.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "base/connection_closed.hpp"
#include "base/event_fd.hpp"
#include "base/throw_errno.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/backends/cpu/hosts/host_links.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"

namespace ddp::cpu_backend {

namespace {

using Clock = std::chrono::steady_clock;
using core::connect_tcp;
using core::Endpoint;
using core::expect_signs_of_life;
using core::listen_tcp;
using core::Listener;
using core::poll_until;
using core::put_text;
using core::TcpSocket;

// An announcement: the address, the port, the secret.
constexpr std::size_t kPortIndex = 2;
constexpr std::size_t kSecretIndex = 3;
constexpr std::size_t kSecretBytes = 3 * sizeof(std::uint64_t);

using AddressBytes = std::array<std::uint8_t, 16>;

// An IPv4 address as an IPv6 address. Zeroes for an empty text, and for an address with a scope (link-local).
AddressBytes encode_address(const std::string& text) {
  AddressBytes bytes{};
  if (::inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return bytes;
  bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return ::inet_pton(AF_INET, text.c_str(), bytes.data() + 12) == 1 ? bytes : AddressBytes{};
}

std::string decode_address(const AddressBytes& bytes) {
  if (bytes == AddressBytes{}) return "";
  std::array<char, INET6_ADDRSTRLEN> text{};
  in6_addr address{};
  std::memcpy(&address, bytes.data(), bytes.size());
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    ::inet_ntop(AF_INET, bytes.data() + 12, text.data(), text.size());
  } else {
    ::inet_ntop(AF_INET6, bytes.data(), text.data(), text.size());
  }
  return text.data();
}

// Whether the peer or the network refuses a connection. Other errors are of this process.
bool is_loss(const std::error_code& code) {
  constexpr std::array kLosses{ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT};
  return base::says_connection_closed(code.value()) ||
         std::find(kLosses.begin(), kLosses.end(), code.value()) != kLosses.end();
}

void put_secret(RankHello& hello, const PeerLinks::Announcement& of) {
  hello.secret.fill(0);
  std::memcpy(hello.secret.data(), of.data() + kSecretIndex, kSecretBytes);
}

}  // namespace

PeerLinks::PeerLinks(int rank, int size, const NetworkOptions& network, const std::string& group,
                     std::function<bool()> must_stop)
    : must_stop_(std::move(must_stop)),
      store_address_(network.store_address),
      announced_(static_cast<std::size_t>(size)),
      links_(static_cast<std::size_t>(size)),
      wake_(base::make_event()) {
  hello_.purpose = RankHello::Purpose::pair;
  hello_.rank = rank;
  hello_.size = size;
  put_text(hello_.group, group);
  const auto secret = std::as_writable_bytes(std::span(own_).subspan(kSecretIndex));
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    base::throw_errno("getrandom");
  }
  try {
    Listener listener = listen_tcp(network);
    const AddressBytes address = encode_address(listener.endpoint.address);
    if (address == AddressBytes{} && !listener.endpoint.address.empty()) {
      throw Error("the address " + listener.endpoint.address + " means something on one link only" +
                  "\ntry:   another interface by DDP_SOCKET_IFNAME, or a store at an address that all hosts know");
    }
    std::memcpy(own_.data(), address.data(), address.size());
    own_[kPortIndex] = listener.endpoint.port;
    RankHello expected = hello_;
    put_secret(expected, own_);
    acceptor_.emplace(std::move(listener.socket), expected);
  } catch (const Error& error) {
    no_listener_ = error.what();
  }
}

void PeerLinks::learn(int rank, const Announcement& announcement) {
  announced_[static_cast<std::size_t>(rank)] = announcement;
}

void PeerLinks::require_listeners(int peer) const {
  if (!acceptor_) throw Error("this rank has no port for messages from other hosts: " + no_listener_);
  if (announced_[static_cast<std::size_t>(peer)][kPortIndex] != 0) return;
  throw Error("rank " + std::to_string(peer) +
              " has no port for messages from other hosts\ntry:   look at its error in the same call; a wider "
              "DDPRUN_PORT_RANGE");
}

bool PeerLinks::connect(int peer, base::Deadline& deadline) {
  if (link(peer).has_out()) return true;
  const Announcement& announced = announced_[static_cast<std::size_t>(peer)];
  AddressBytes address{};
  std::memcpy(address.data(), announced.data(), address.size());
  Endpoint endpoint{decode_address(address), static_cast<std::uint16_t>(announced[kPortIndex])};
  if (endpoint.address.empty()) endpoint.address = store_address_;
  RankHello hello = hello_;
  put_secret(hello, announced);
  try {
    const auto now = Clock::now();
    base::Deadline until = deadline.part(now, std::max(now, deadline.end()));
    until.cut_by(&cut_);
    TcpSocket socket = connect_tcp(endpoint, hello, until);
    expect_signs_of_life(socket.get(), kSilenceMax);
    const std::lock_guard lock(link_mutex_);
    if (!closed_as_) link(peer).set_out(std::move(socket));
    return true;
  } catch (const AbortedError&) {
    return true;  // the caller asks must_stop()
  } catch (const std::system_error& error) {
    if (is_loss(error.code())) return false;
    throw Error("no connection to rank " + std::to_string(peer) + " on another host: " + error.what() +
                "\ntry:   a higher limit of open files, `ulimit -n`");
  }
}

bool PeerLinks::send_answer(int peer, PendingBytes& answer) {
  const std::lock_guard lock(link_mutex_);
  return closed_as_ || link(peer).send_answer(answer);
}

void PeerLinks::await_farewell(int peer) {
  PeerLink& link = this->link(peer);
  const auto now = Clock::now();
  base::Deadline until(now, now + kAnswerMax);
  while (link.has_out() && !must_stop_()) {
    link.read_answers();
    if (link.presence() != Presence::here || link.is_over()) return;
    std::array<pollfd, 2> polled{{{link.out_socket(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    poll_until(polled, until);
    if (polled[1].revents != 0) base::take_rings(wake_.get());
    if (until.passed(Clock::now())) return;
  }
}

void PeerLinks::accept_pending() {
  polled_.clear();
  acceptor_->add_to(polled_);
  if (::poll(polled_.data(), polled_.size(), 0) > 0) accept(polled_);
}

void PeerLinks::wait(std::vector<pollfd>& polled, const base::Deadline& deadline) {
  polled.push_back({wake_.get(), POLLIN, 0});
  const std::size_t acceptor_from = polled.size();
  acceptor_->add_to(polled);
  poll_until(polled, deadline);
  if (polled[acceptor_from - 1].revents != 0) base::take_rings(wake_.get());
  if (!must_stop_()) accept(std::span(polled).subspan(acceptor_from));
}

void PeerLinks::wake() { base::ring(wake_); }

void PeerLinks::accept(std::span<const pollfd> polled) {
  std::vector<Acceptor::Arrival> arrivals;
  try {
    arrivals = acceptor_->take(polled);
  } catch (const std::system_error& error) {
    if (must_stop_()) return;  // the peers that are not accepted see their connections end
    throw Error(std::string("a connection from another host can't be taken in: ") + error.what() +
                "\ntry:   a higher limit of open files, `ulimit -n`");
  }
  for (Acceptor::Arrival& arrival : arrivals) {
    const int peer = arrival.hello.rank;
    const bool is_peer = arrival.hello.purpose == RankHello::Purpose::pair && peer != hello_.rank && peer >= 0 &&
                         static_cast<std::size_t>(peer) < links_.size() && arrival.hello.size == hello_.size;
    if (!is_peer || link(peer).has_in()) continue;
    expect_signs_of_life(arrival.socket.get(), kSilenceMax);
    const std::lock_guard lock(link_mutex_);
    link(peer).set_in(std::move(arrival.socket));
    if (closed_as_) link(peer).close(*closed_as_);
  }
}

void PeerLinks::interrupt() {
  cut_.cut("the group is given up");
  wake();
}

void PeerLinks::close(Presence how) {
  const std::lock_guard lock(link_mutex_);
  if (closed_as_) return;
  closed_as_ = how;
  for (PeerLink& link : links_) link.close(how);
}

bool PeerLinks::is_closed() const {
  const std::lock_guard lock(link_mutex_);
  return closed_as_.has_value();
}

void PeerLinks::stop_accepting() {
  if (!acceptor_) return;
  try {
    for (int step = 0; step < 2; ++step) accept_pending();  // the connection, then its RankHello
  } catch (const std::exception&) {                         // these peers get no farewell and see the connection end
  }
  acceptor_->close();
}

}  // namespace ddp::cpu_backend
