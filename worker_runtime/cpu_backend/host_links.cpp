#include "worker_runtime/cpu_backend/host_links.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "ddp/error.hpp"
#include "rendezvous/io/event_fd.hpp"
#include "rendezvous/io/quiet_thread.hpp"
#include "worker_runtime/cpu_backend/local_socket.hpp"

namespace ddp::cpu_backend {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kProbeSeconds = 5;
constexpr int kStop = -1;  // no host
constexpr std::size_t kAtOnce = 16;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

void set_option(int socket, int level, int name, int value) {
  if (::setsockopt(socket, level, name, &value, sizeof value) != 0) fail("setsockopt");
}

// The kernel asks a silent host for a sign of life, and gives up after kSilenceMax.
void expect_signs_of_life(int socket) {
  const auto limit = std::chrono::milliseconds(kSilenceMax);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kProbeSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, static_cast<int>(kSilenceMax.count()) / kProbeSeconds);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit.count()));
}

// A frame's way out, or in: what is left of its header and of its contents.
struct Rest {
  std::span<std::byte> header;
  std::span<std::byte> contents;

  bool is_empty() const { return header.empty() && contents.empty(); }
  void advance(std::size_t bytes) {
    const std::size_t of_header = std::min(bytes, header.size());
    header = header.subspan(of_header);
    contents = contents.subspan(bytes - of_header);
  }
  std::array<iovec, 2> parts() const {
    return {iovec{header.data(), header.size()}, iovec{contents.data(), contents.size()}};
  }
};

// As much as goes at once. False where the connection is lost.
template <class Move>
bool move_some(int socket, Rest& rest, const Move& move) {
  while (!rest.is_empty()) {
    auto parts = rest.parts();
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t count = move(socket, &message);
    if (count > 0) {
      rest.advance(static_cast<std::size_t>(count));
    } else if (count < 0 && errno == EAGAIN) {
      return true;
    } else if (count == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

// Before the contents of an exchange. A change of it changes Hello::magic.
struct HostLinks::Frame {
  std::uint64_t exchange = 0;
  std::uint64_t bytes = 0;
};

// A message of news as it is sent.
struct HostLinks::Wire {
  Word word = Word::rank;
  Trouble trouble = Trouble::none;
  std::int32_t rank = 0;
  std::int32_t pid = 0;
  Presence presence = Presence::here;
  std::uint32_t reserved = 0;
  std::uint64_t calls = 0;
  FingerprintWords last_call{};
};

HostLinks::HostLinks(const HostLayout& layout, int own_host, std::vector<LinkSockets> sockets, Heard heard,
                     Answer answer)
    : layout_(layout),
      own_host_(own_host),
      others_(sockets.size()),
      heard_(std::move(heard)),
      answer_(std::move(answer)),
      wake_(io::make_event()),
      stop_(io::make_event()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) fail("epoll_create1");
  for (std::size_t host = 0; host < sockets.size(); ++host) {
    if (static_cast<int>(host) == own_host) continue;
    others_[host].sockets = std::move(sockets[host]);
    expect_signs_of_life(others_[host].sockets.news.get());
  }
  watch_for(stop_.get(), kStop);
  for (int host = 0; host < layout.host_count(); ++host) {
    if (host != own_host) watch_for(others_[static_cast<std::size_t>(host)].sockets.news.get(), host);
  }
  thread_ = io::start_quiet_thread([this] { watch(); });
}

HostLinks::~HostLinks() {
  io::ring(stop_);
  thread_.join();
}

HostLinks::End HostLinks::transfer(std::span<const Parcel> parcels, const std::function<bool()>& must_stop,
                                   io::Deadline& deadline) {
  ++exchange_;
  struct Way {
    int host = 0;
    int socket = -1;
    Frame frame_out, frame_in;
    Rest out, in;
  };
  std::vector<Way> ways(others_.size() - 1);
  for (std::size_t i = 0; i < ways.size(); ++i) {
    Way& way = ways[i];
    way.host = static_cast<int>(i) < own_host_ ? static_cast<int>(i) : static_cast<int>(i) + 1;
    const Parcel& parcel = parcels[static_cast<std::size_t>(way.host)];
    way.socket = others_[static_cast<std::size_t>(way.host)].sockets.data.get();
    way.frame_out = {exchange_, parcel.out.size()};
    // sendmsg() takes no constant memory, and does not write to it
    way.out = {std::as_writable_bytes(std::span(&way.frame_out, 1)),
               {const_cast<std::byte*>(parcel.out.data()), parcel.out.size()}};
    way.in = {std::as_writable_bytes(std::span(&way.frame_in, 1)), parcel.in};
  }
  const auto send = [](int socket, msghdr* message) { return ::sendmsg(socket, message, MSG_NOSIGNAL | MSG_DONTWAIT); };
  const auto receive = [](int socket, msghdr* message) { return ::recvmsg(socket, message, MSG_DONTWAIT); };
  const auto waited_for = [&] {
    End end{End::Kind::timed_out, {}};
    for (const Way& way : ways) {
      if (!way.in.is_empty() || !way.out.is_empty()) end.hosts.push_back(way.host);
    }
    return end;
  };

  bool is_late = false;
  while (true) {
    std::vector<pollfd> polled;
    for (Way& way : ways) {
      const bool takes = move_some(way.socket, way.out, send);
      const bool gives = move_some(way.socket, way.in, receive);  // first what has come, then that no more will
      if (!gives) return {End::Kind::host_lost, {way.host}};
      if (!takes && way.in.is_empty()) way.out = {};  // it has given all it had to, and can be missed until the next
      if (way.in.header.empty() && (way.frame_in.exchange != exchange_ ||
                                    way.frame_in.bytes != parcels[static_cast<std::size_t>(way.host)].in.size())) {
        throw Error("rank " + std::to_string(layout_.leader_of(way.host)) + " sent " +
                    std::to_string(way.frame_in.bytes) + " bytes for exchange " +
                    std::to_string(way.frame_in.exchange) + ", not " +
                    std::to_string(parcels[static_cast<std::size_t>(way.host)].in.size()) + " for " +
                    std::to_string(exchange_) + "\nwhere: the connection between two hosts of the process group");
      }
      const int events = (way.in.is_empty() ? 0 : POLLIN) | (way.out.is_empty() || !takes ? 0 : POLLOUT);
      if (events != 0) polled.push_back({way.socket, static_cast<short>(events), 0});
    }
    if (polled.empty()) return {};
    polled.push_back({wake_.get(), POLLIN, 0});
    if (must_stop()) return {End::Kind::stopped, {}};
    if (is_late) return waited_for();
    poll_until(polled, deadline);
    is_late = deadline.passed(Clock::now());
    if (polled.back().revents != 0) io::take_rings(wake_.get());
  }
}

void HostLinks::wake() { io::ring(wake_); }

bool HostLinks::send_news(int host, Word word, const RankNews& news) {
  const Wire wire{word, news.trouble, news.rank, news.pid, news.presence, 0, news.calls, news.last_call};
  const int socket = others_[static_cast<std::size_t>(host)].sockets.news.get();
  const auto bytes = std::as_bytes(std::span(&wire, 1));
  const std::lock_guard lock(send_mutex_);
  if (is_silent_) return false;
  try {
    if (send_some(socket, bytes) == bytes.size()) return true;
  } catch (const ConnectionLost&) {
    return false;
  }
  ::shutdown(socket, SHUT_RDWR);  // it has not read for long, and half a message would garble what follows
  return false;
}

void HostLinks::tell(const RankNews& news) {
  for (int host = 0; host < layout_.host_count(); ++host) {
    if (host != own_host_) send_news(host, Word::rank, news);
  }
}

void HostLinks::say_farewell(const RankNews& own) {
  for (int host = 0; host < layout_.host_count(); ++host) {
    if (host != own_host_) send_news(host, Word::farewell, own);
  }
  const std::lock_guard lock(send_mutex_);
  is_silent_ = true;
  for (const Other& other : others_) {
    if (!other.sockets.data) continue;
    ::shutdown(other.sockets.data.get(), SHUT_WR);  // what was sent before still arrives
    ::shutdown(other.sockets.news.get(), SHUT_WR);
  }
}

bool HostLinks::ask(int host, std::uint64_t call) {
  Other& other = others_[static_cast<std::size_t>(host)];
  std::unique_lock lock(mutex_);
  const std::uint64_t before = other.answers;
  lock.unlock();
  RankNews question;
  question.calls = call;
  send_news(host, Word::question, question);  // where it fails, the end of the news is near
  lock.lock();
  changed_.wait_until(lock, Clock::now() + kAnswerMax, [&] { return other.answers != before || other.is_out; });
  return other.answers != before || other.is_out;
}

void HostLinks::hear_out(int host) {
  Other& other = others_[static_cast<std::size_t>(host)];
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, Clock::now() + kAnswerMax, [&] { return other.is_out; });
}

void HostLinks::watch() {
  std::array<epoll_event, kAtOnce> events{};
  while (true) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {  // none after EINTR, the only error there can be
      const int host = events[static_cast<std::size_t>(i)].data.fd;
      if (host == kStop) return;
      read_news(host);
    }
  }
}

void HostLinks::watch_for(int fd, int host) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = host;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
}

void HostLinks::read_news(int host) {
  Other& other = others_[static_cast<std::size_t>(host)];
  while (true) {
    std::array<std::byte, sizeof(Wire)> buffer;
    const std::size_t wanted = buffer.size() - other.heard.size();
    const ssize_t count = ::recv(other.sockets.news.get(), buffer.data(), wanted, MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const bool is_silent = count < 0 && errno != ECONNRESET && errno != EPIPE;
      return end_news(host, is_silent ? Ending::silent : Ending::closed);
    }
    other.heard.insert(other.heard.end(), buffer.begin(), buffer.begin() + count);
    if (other.heard.size() < sizeof(Wire)) continue;
    Wire wire;
    std::memcpy(&wire, other.heard.data(), sizeof wire);
    other.heard.clear();
    if (!hear(host, wire)) end_news(host, Ending::babble);
    return;  // one at a time: who never falls silent keeps nobody else from being heard
  }
}

// Whether it makes sense.
bool HostLinks::hear(int host, const Wire& wire) {
  const bool is_of_rank = wire.word == Word::rank || wire.word == Word::farewell;
  const bool is_known = wire.word <= Word::answered && wire.trouble <= Trouble::missing &&
                        wire.presence <= Presence::babbled && wire.rank >= 0 && wire.rank < layout_.size();
  if (!is_known || (is_of_rank && wire.trouble == Trouble::none)) return false;
  switch (wire.word) {
    case Word::question:
      for (const RankNews& news : answer_(wire.calls)) send_news(host, Word::rank, news);
      send_news(host, Word::answered, {});
      return true;
    case Word::answered: {
      const std::lock_guard lock(mutex_);
      ++others_[static_cast<std::size_t>(host)].answers;
      changed_.notify_all();
      return true;
    }
    case Word::farewell: {
      const std::lock_guard lock(mutex_);
      others_[static_cast<std::size_t>(host)].said_farewell = true;
      break;
    }
    case Word::rank: break;
  }
  heard_({wire.trouble, wire.rank, wire.pid, wire.presence, wire.calls, wire.last_call});
  wake();
  return true;
}

// A leader that ends without a farewell has died; of a host that has gone silent nobody knows anything.
void HostLinks::end_news(int host, Ending how) {
  const Other& other = others_[static_cast<std::size_t>(host)];
  const int leader = layout_.leader_of(host);
  if (how == Ending::babble) {
    heard_({Trouble::lost, leader, 0, Presence::babbled, 0, {}});
  } else if (!other.said_farewell && how == Ending::silent) {
    for (const int rank : layout_.ranks_of(host)) heard_({Trouble::missing, rank, 0, Presence::here, 0, {}});
  } else if (!other.said_farewell) {
    heard_({Trouble::lost, leader, 0, Presence::here, kCallsUnknown, {}});
  }
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, other.sockets.news.get(), nullptr);
  if (how != Ending::closed) ::shutdown(other.sockets.data.get(), SHUT_RDWR);  // ends an exchange that waits for it
  {
    const std::lock_guard lock(mutex_);
    others_[static_cast<std::size_t>(host)].is_out = true;
    changed_.notify_all();
  }
  wake();
}

}  // namespace ddp::cpu_backend
