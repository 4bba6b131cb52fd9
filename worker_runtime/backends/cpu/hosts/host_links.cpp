#include "worker_runtime/backends/cpu/hosts/host_links.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/connection_closed.hpp"
#include "base/event_fd.hpp"
#include "base/quiet_thread.hpp"
#include "base/throw_errno.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"

namespace ddp::cpu_backend {

namespace {

using Clock = std::chrono::steady_clock;
using core::ConnectionLost;
using core::expect_progress;
using core::send_some;

constexpr int kStop = -1;  // no host
constexpr std::size_t kAtOnce = 16;

std::vector<int> data_sockets(const std::vector<LinkSockets>& sockets) {
  std::vector<int> data;
  for (const LinkSockets& each : sockets) data.push_back(each.data.get());
  return data;
}

}  // namespace

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
      streams_(layout, own_host, data_sockets(sockets)),
      heard_(std::move(heard)),
      answer_(std::move(answer)),
      stop_(base::make_event()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) base::throw_errno("epoll_create1");
  for (std::size_t host = 0; host < sockets.size(); ++host) {
    if (static_cast<int>(host) == own_host) continue;
    others_[host].sockets = std::move(sockets[host]);
    expect_progress(others_[host].sockets.news.get(), kSilenceMax);
  }
  watch_for(stop_.get(), kStop);
  for (int host = 0; host < layout.host_count(); ++host) {
    if (host != own_host) watch_for(others_[static_cast<std::size_t>(host)].sockets.news.get(), host);
  }
  thread_ = base::start_quiet_thread([this] { watch(); });
}

HostLinks::~HostLinks() {
  base::ring(stop_);
  thread_.join();
}

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
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
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

std::vector<int> HostLinks::ask(std::uint64_t call) {
  std::vector<std::uint64_t> before;
  {
    const std::lock_guard lock(mutex_);
    for (const Other& other : others_) before.push_back(other.answers);
  }
  RankNews question;
  question.calls = call;
  for (int host = 0; host < layout_.host_count(); ++host) {
    if (host != own_host_) send_news(host, Word::question, question);  // where it fails, the end of the news is near
  }
  std::vector<int> silent;
  std::unique_lock lock(mutex_);
  const auto find_silent = [&] {
    silent.clear();
    for (int host = 0; host < layout_.host_count(); ++host) {
      const Other& other = others_[static_cast<std::size_t>(host)];
      const bool is_heard = other.is_out || other.answers != before[static_cast<std::size_t>(host)];
      if (host != own_host_ && !is_heard) silent.push_back(host);
    }
    return silent.empty() || is_over_;
  };
  changed_.wait_until(lock, Clock::now() + kAnswerMax, find_silent);
  return is_over_ ? std::vector<int>() : silent;
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
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) base::throw_errno("epoll_ctl");
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
      const bool is_silent = count < 0 && !base::says_connection_closed(errno);
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
                        wire.presence <= Presence::protocol_error && wire.rank >= 0 && wire.rank < layout_.size();
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
    heard_({Trouble::lost, leader, 0, Presence::protocol_error, 0, {}});
  } else if (!other.said_farewell && how == Ending::silent) {
    for (const int rank : layout_.ranks_of(host)) heard_({Trouble::missing, rank, 0, Presence::unreachable, 0, {}});
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
