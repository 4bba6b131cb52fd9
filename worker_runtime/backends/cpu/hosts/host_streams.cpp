#include "worker_runtime/backends/cpu/hosts/host_streams.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/event_fd.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/backends/cpu/arrivals/core_count.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"

namespace ddp::cpu_backend {

namespace {

using Clock = std::chrono::steady_clock;
using core::poll_until;
using Motion = HostStreams::Motion;

constexpr std::chrono::microseconds kTryFor{50};  // before it sleeps: a message of 64 KiB takes 25 on loopback
constexpr int kStepsByClock = 64;                 // while it moves, the time is looked at only now and then
constexpr int kPauses = 20;                       // about 1 us; without them 64 KiB take 65 us on loopback, not 29

// What a ring sends ahead of what it receives: a round trip's worth of a fast network, and on a short way no more than
// what stays in a core's cache until it is received.
constexpr std::size_t kAheadMin = 256u << 10;
constexpr std::size_t kAheadMax = 8u << 20;
constexpr std::size_t kBytesPerMicrosecond = 10'000;

// Before the contents of a message. A change of it changes RankHello::magic.
struct Header {
  std::uint64_t exchange = 0;
  std::uint64_t bytes = 0;
};

// What is left of a message's parts.
class Rest {
 public:
  void add(std::span<const std::byte> part) {
    // sendmsg() takes no constant memory, and does not write to it
    if (!part.empty()) parts_[count_++] = {const_cast<std::byte*>(part.data()), part.size()};
  }
  bool is_empty() const { return first_ == count_; }
  // By `step`, which takes what is left: one part or a message of several.
  template <class Step>
  std::optional<std::size_t> move(const Step& step) {
    if (count_ - first_ == 1) {
      const iovec& last = parts_[first_];
      return step(std::span(static_cast<std::byte*>(last.iov_base), last.iov_len));
    }
    msghdr message{};
    message.msg_iov = parts_.data() + first_;
    message.msg_iovlen = count_ - first_;
    return step(message);
  }
  void advance(std::size_t bytes) {
    while (first_ < count_ && bytes >= parts_[first_].iov_len) bytes -= parts_[first_++].iov_len;
    if (bytes == 0) return;
    parts_[first_].iov_base = static_cast<std::byte*>(parts_[first_].iov_base) + bytes;
    parts_[first_].iov_len -= bytes;
  }

 private:
  std::array<iovec, HostStreams::kPartsMax + 1> parts_{};
  std::size_t first_ = 0, count_ = 0;
};

// Copied into one piece before it goes, and after it came, because the kernel takes longer for several.
constexpr std::size_t kSmallBytes = 256;

// A message on its way to a host.
struct Outgoing {
  int host = 0;
  Header header;
  Rest rest;
  bool is_broken = false;
  std::array<std::byte, kSmallBytes> small;

  // `parts` have the header's bytes together.
  void begin(std::span<const std::span<const std::byte>> parts) {
    const bool is_small = sizeof header + header.bytes <= small.size();
    std::byte* end = small.data();
    const auto add = [&](std::span<const std::byte> part) {
      if (is_small) {
        end = std::copy(part.begin(), part.end(), end);
      } else {
        rest.add(part);
      }
    };
    add(std::as_bytes(std::span(&header, 1)));
    for (const auto part : parts) add(part);
    if (is_small) rest.add(std::span(small.data(), end));
  }

  // Whether some of it went.
  bool move(const HostStreams& streams) {
    if (is_broken || rest.is_empty()) return false;
    const auto bytes = rest.move([&](auto&& what) { return streams.send(host, what); });
    is_broken = !bytes;
    if (bytes) rest.advance(*bytes);
    return bytes.value_or(0) > 0;
  }
};

// A message on its way from a host: what came of it so far, header and contents.
struct Incoming {
  int host = 0;
  Header header;
  std::span<std::byte> contents;
  std::size_t received = 0;
  bool is_lost = false;

  bool has_header() const { return received >= sizeof header; }
  std::size_t contents_received() const { return received - std::min(received, sizeof header); }
  bool is_complete() const { return has_header() && contents_received() >= contents.size(); }
  bool move(const HostStreams& streams) {
    if (is_complete()) return false;
    if (received == 0 && sizeof header + contents.size() <= kSmallBytes) return move_small(streams);
    Rest rest;
    if (!has_header()) rest.add(std::as_bytes(std::span(&header, 1)).subspan(received));
    rest.add(contents.subspan(contents_received()));
    return take(rest.move([&](auto&& room) { return streams.receive(host, room); }));
  }

 private:
  bool move_small(const HostStreams& streams) {
    std::array<std::byte, kSmallBytes> whole;
    if (!take(streams.receive(host, std::span(whole).first(sizeof header + contents.size())))) return false;
    std::memcpy(&header, whole.data(), std::min(received, sizeof header));
    std::copy_n(whole.begin() + sizeof header, contents_received(), contents.begin());
    return true;
  }

  bool take(std::optional<std::size_t> bytes) {
    is_lost = !bytes;
    received += bytes.value_or(0);
    return bytes.value_or(0) > 0;
  }
};

// What sendmsg() or recvmsg() moves, of which only the second says 0: for the end of the connection.
template <class Move>
std::optional<std::size_t> at_once(const Move& move) {
  while (true) {
    const ssize_t count = move();
    if (count > 0) return static_cast<std::size_t>(count);
    if (count < 0 && errno == EAGAIN) return 0;
    if (count == 0 || errno != EINTR) return std::nullopt;
  }
}

// Between two tries: a receiver that tries without a break holds the lock that what comes in needs.
void give_way(bool may_spin) {
  for (int i = 0; may_spin && i < kPauses; ++i) pause_core();
  if (!may_spin) ::sched_yield();
}

[[noreturn]] void refuse(const HostStreams& streams, const Incoming& in, std::uint64_t exchange, std::size_t wanted) {
  throw Error("rank " + std::to_string(streams.leader_of(in.host)) + " sent " + std::to_string(in.header.bytes) +
              " bytes for exchange " + std::to_string(in.header.exchange) + ", not " + std::to_string(wanted) +
              " for " + std::to_string(exchange) + "\nwhere: the connection between two hosts of the process group");
}

void name_both(std::vector<Motion::Awaited>& awaited, const Outgoing& out, const Incoming& in) {
  const bool to_send = !out.rest.is_empty() && !out.is_broken;
  if (out.host == in.host) {
    if (to_send || !in.is_complete()) awaited.push_back({in.host, to_send, !in.is_complete()});
    return;
  }
  if (to_send) awaited.push_back({out.host, true, false});
  if (!in.is_complete()) awaited.push_back({in.host, false, true});
}

// What one cannot take that has given all it had to, it can be missed until the next exchange.
bool is_done(const Outgoing& out, const Incoming& in) {
  return in.is_complete() && (out.rest.is_empty() || (out.is_broken && out.host == in.host));
}

class Transfer : public Motion {
 public:
  Transfer(const HostStreams& streams, std::span<const HostStreams::Parcel> parcels, std::uint64_t exchange)
      : ways_(parcels.size() - 1), exchange_(exchange) {
    for (std::size_t i = 0; i < ways_.size(); ++i) {
      Way& way = ways_[i];
      const int host = static_cast<int>(i) < streams.own_host() ? static_cast<int>(i) : static_cast<int>(i) + 1;
      const HostStreams::Parcel& parcel = parcels[static_cast<std::size_t>(host)];
      way.out.host = way.in.host = host;
      way.out.header = {exchange, parcel.out.size()};
      way.out.begin({&parcel.out, 1});
      way.in.contents = parcel.in;
    }
  }

  Step step(HostStreams& streams) override {
    bool is_any_left = false, has_moved = false;
    for (Way& way : ways_) {
      has_moved = way.out.move(streams) || has_moved;
      has_moved = way.in.move(streams) || has_moved;  // first what has come, then that no more will
      if (way.in.is_lost) {
        lost_ = way.in.host;
        return Step::lost;
      }
      const bool is_wrong =
          way.in.has_header() && (way.in.header.exchange != exchange_ || way.in.header.bytes != way.in.contents.size());
      if (is_wrong) refuse(streams, way.in, exchange_, way.in.contents.size());
      is_any_left = is_any_left || !is_done(way.out, way.in);
    }
    return !is_any_left ? Step::done : has_moved ? Step::moved : Step::stuck;
  }

  void name(std::vector<Awaited>& awaited) const override {
    if (lost_) return awaited.push_back({*lost_});
    for (const Way& way : ways_) name_both(awaited, way.out, way.in);
  }

 private:
  struct Way {
    Outgoing out;
    Incoming in;
  };
  std::vector<Way> ways_;
  std::uint64_t exchange_;
  std::optional<int> lost_;
};

class Swapping : public Motion {
 public:
  Swapping(HostStreams::Swap& swap, std::uint64_t exchange) : swap_(swap) {
    out_.host = swap.to;
    out_.header.exchange = exchange;
    for (const auto part : swap.out) out_.header.bytes += part.size();
    out_.begin(swap.out);
    in_.host = swap.from;
    in_.contents = swap.in.first(swap.expected);
  }

  Step step(HostStreams& streams) override {
    const bool has_sent = out_.move(streams);
    const bool has_received = in_.move(streams);
    if (in_.is_lost) return Step::lost;
    if (in_.has_header()) {
      const bool is_wrong = in_.header.exchange != out_.header.exchange || in_.header.bytes > swap_.in.size() ||
                            in_.contents_received() > in_.header.bytes;
      if (is_wrong) refuse(streams, in_, out_.header.exchange, swap_.expected);
      in_.contents = swap_.in.first(static_cast<std::size_t>(in_.header.bytes));
      swap_.received = in_.contents.size();
      if (is_done(out_, in_)) return Step::done;
      if (in_.is_complete() && out_.is_broken) return Step::lost;  // who lacks this message can't do its part
    }
    return has_sent || has_received ? Step::moved : Step::stuck;
  }

  void name(std::vector<Awaited>& awaited) const override {
    if (in_.is_lost) return awaited.push_back({in_.host});
    if (in_.has_header() && in_.is_complete() && out_.is_broken) return awaited.push_back({out_.host});
    name_both(awaited, out_, in_);
  }

 private:
  HostStreams::Swap& swap_;
  Outgoing out_;
  Incoming in_;
};

}  // namespace

HostStreams::HostStreams(const HostLayout& layout, int own_host, std::vector<int> sockets)
    : layout_(layout),
      own_host_(own_host),
      sockets_(std::move(sockets)),
      may_spin_(layout.ranks_of(own_host).size() <= core_count()),
      wake_(base::make_event()) {}

HostStreams::End HostStreams::transfer(std::span<const Parcel> parcels, const Wait& wait) {
  Transfer transfer(*this, parcels, ++exchange_);
  return run(transfer, wait);
}

HostStreams::End HostStreams::swap(Swap& swap, const Wait& wait) {
  Swapping swapping(swap, ++exchange_);
  return run(swapping, wait);
}

HostStreams::End HostStreams::run(Motion& motion, const Wait& wait) {
  std::optional<Clock::time_point> sleeps_from;  // while it is stuck
  int moved_count = 0;
  const auto end_with = [&](End::Kind kind) {
    End end{kind, {}};
    awaited_.clear();
    motion.name(awaited_);
    for (const Motion::Awaited& each : awaited_) end.hosts.push_back(each.host);
    return end;
  };
  while (true) {
    const Motion::Step step = motion.step(*this);
    if (step == Motion::Step::done) return {};
    if (step == Motion::Step::lost) return end_with(End::Kind::host_lost);
    if (is_woken_.load(std::memory_order_relaxed) && is_woken_.exchange(false) && wait.must_stop()) {
      return {End::Kind::stopped, {}};
    }
    if (step == Motion::Step::moved) {
      sleeps_from.reset();
      if (++moved_count % kStepsByClock != 0 || !wait.deadline.passed(Clock::now())) continue;
      End end = end_with(End::Kind::timed_out);
      if (!end.hosts.empty()) return end;
      continue;  // it has all but noticed that it is done
    }
    const auto now = Clock::now();
    if (!sleeps_from) sleeps_from = now + kTryFor;
    if (now < *sleeps_from) {
      give_way(may_spin_);
      continue;
    }
    if (wait.must_stop()) return {End::Kind::stopped, {}};
    if (wait.deadline.passed(now)) return end_with(End::Kind::timed_out);
    awaited_.clear();
    motion.name(awaited_);
    sleep(awaited_, wait.deadline);
  }
}

void HostStreams::sleep(std::span<const Motion::Awaited> awaited, base::Deadline& deadline) {
  polled_.clear();
  for (const Motion::Awaited& each : awaited) {
    const int events = (each.to_send ? POLLOUT : 0) | (each.to_receive ? POLLIN : 0);
    polled_.push_back({sockets_[static_cast<std::size_t>(each.host)], static_cast<short>(events), 0});
  }
  polled_.push_back({wake_.get(), POLLIN, 0});
  poll_until(polled_, deadline);
  if (polled_.back().revents != 0) base::take_rings(wake_.get());
}

std::optional<std::size_t> HostStreams::send(int host, msghdr& message) const {
  const int socket = sockets_[static_cast<std::size_t>(host)];
  return at_once([&] { return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
}

std::optional<std::size_t> HostStreams::receive(int host, msghdr& message) const {
  const int socket = sockets_[static_cast<std::size_t>(host)];
  return at_once([&] { return ::recvmsg(socket, &message, MSG_DONTWAIT); });
}

std::optional<std::size_t> HostStreams::send(int host, std::span<const std::byte> bytes) const {
  const int socket = sockets_[static_cast<std::size_t>(host)];
  return at_once([&] { return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT); });
}

std::optional<std::size_t> HostStreams::receive(int host, std::span<std::byte> room) const {
  const int socket = sockets_[static_cast<std::size_t>(host)];
  return at_once([&] { return ::recv(socket, room.data(), room.size(), MSG_DONTWAIT); });
}

std::size_t HostStreams::bytes_ahead(int host) const {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  const int socket = sockets_[static_cast<std::size_t>(host)];
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return kAheadMax;
  return std::clamp(info.tcpi_min_rtt * kBytesPerMicrosecond, kAheadMin, kAheadMax);
}

void HostStreams::wake() {
  is_woken_.store(true);
  base::ring(wake_);
}

}  // namespace ddp::cpu_backend
