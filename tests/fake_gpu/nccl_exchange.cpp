#include "tests/fake_gpu/nccl_exchange.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "tests/fake_gpu/ledger.hpp"

namespace ddp::fake_gpu {

namespace {

enum class Progress : std::uint8_t { some, none, peer_gone };

Progress progress_of(ssize_t moved) {
  if (moved > 0) return Progress::some;
  return moved < 0 && (errno == EAGAIN || errno == EINTR) ? Progress::none : Progress::peer_gone;
}

class Sender {
 public:
  Sender(int socket, std::deque<Outgoing> queue, ExchangeFault fault)
      : socket_(socket), queue_(std::move(queue)), fault_(fault) {}

  bool finished() const { return queue_.empty(); }

  // As far as the socket takes it.
  Progress advance() {
    while (!queue_.empty()) {
      const Outgoing& message = queue_.front();
      const Header header{message.bytes.size(), message.tag};
      const std::size_t whole = sizeof header + message.bytes.size();
      const bool in_header = sent_ < sizeof header;
      const auto* const from = in_header ? reinterpret_cast<const std::byte*>(&header) + sent_
                                         : message.bytes.data() + (sent_ - sizeof header);
      std::size_t count = (in_header ? sizeof header : whole) - sent_;
      if (fault_.die_inside && whole / 2 > sent_) count = std::min(count, whole / 2 - sent_);
      if (count > 0) {
        const ssize_t moved = ::send(socket_, from, count, MSG_NOSIGNAL);
        if (const Progress progress = progress_of(moved); progress != Progress::some) return progress;
        sent_ += static_cast<std::size_t>(moved);
      }
      if (fault_.die_inside && sent_ >= whole / 2) kill_this_process();
      if (sent_ < whole) continue;
      queue_.pop_front();
      sent_ = 0;
    }
    return Progress::some;
  }

 private:
  int socket_;
  std::deque<Outgoing> queue_;
  ExchangeFault fault_;
  std::size_t sent_ = 0;  // of the first, its header included
};

class Receiver {
 public:
  Receiver(int socket, std::deque<Incoming> queue) : socket_(socket), queue_(std::move(queue)) {}

  bool finished() const { return queue_.empty(); }

  // As far as the socket gives it; sets `mismatch` where it is something else than was expected.
  Progress advance(bool& mismatch) {
    while (!queue_.empty()) {
      const Incoming& message = queue_.front();
      const bool in_header = received_ < sizeof header_;
      auto* const to = in_header ? reinterpret_cast<std::byte*>(&header_) + received_
                                 : message.bytes.data() + (received_ - sizeof header_);
      const std::size_t whole = sizeof header_ + message.bytes.size();
      const std::size_t count = (in_header ? sizeof header_ : whole) - received_;
      if (count > 0) {
        const ssize_t moved = ::recv(socket_, to, count, 0);
        if (const Progress progress = progress_of(moved); progress != Progress::some) return progress;
        received_ += static_cast<std::size_t>(moved);
      }
      if (in_header && received_ == sizeof header_) {
        mismatch = header_.tag != message.tag || header_.bytes != message.bytes.size();
        if (mismatch) return Progress::none;
      }
      if (received_ < whole) continue;
      queue_.pop_front();
      received_ = 0;
    }
    return Progress::some;
  }

 private:
  int socket_;
  std::deque<Incoming> queue_;
  Header header_;
  std::size_t received_ = 0;  // of the first, its header included
};

class Exchange {
 public:
  Exchange(Messages messages, const Links& links, const base::Cut& abort, ExchangeFault fault) : abort_(abort) {
    for (std::size_t rank = 0; rank < links.size(); ++rank) {
      if (!links[rank]) continue;
      sockets_.push_back(links[rank].get());
      senders_.emplace_back(links[rank].get(), std::move(messages.to[rank]), fault);
      receivers_.emplace_back(links[rank].get(), std::move(messages.from[rank]));
    }
  }

  Outcome run() {
    for (;;) {
      std::vector<pollfd> polled{{abort_.descriptor(), POLLIN, 0}};
      for (std::size_t i = 0; i < sockets_.size(); ++i) {
        const int events = (senders_[i].finished() ? 0 : POLLOUT) | (receivers_[i].finished() ? 0 : POLLIN);
        polled.push_back({events == 0 ? -1 : sockets_[i], static_cast<short>(events), 0});
      }
      if (std::all_of(polled.begin() + 1, polled.end(), [](const pollfd& each) { return each.fd < 0; }))
        return Outcome::done;
      if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR)
        throw std::system_error(errno, std::generic_category(), "fake NCCL: poll");
      if (polled[0].revents != 0) return Outcome::aborted;
      for (std::size_t i = 0; i < sockets_.size(); ++i) {
        if (const auto end = advance(i, polled[i + 1].revents)) return *end;
      }
    }
  }

 private:
  // How the exchange ends by it; nothing where it goes on. What has arrived is read before a closed socket counts.
  std::optional<Outcome> advance(std::size_t i, int revents) {
    if (revents == 0) return std::nullopt;
    bool mismatch = false;
    if (!receivers_[i].finished() && receivers_[i].advance(mismatch) == Progress::peer_gone) return Outcome::peer_gone;
    if (mismatch) return Outcome::mismatch;
    if (!senders_[i].finished() && senders_[i].advance() == Progress::peer_gone) return Outcome::peer_gone;
    return std::nullopt;
  }

  const base::Cut& abort_;
  std::vector<int> sockets_;  // as the two below: one for each other rank
  std::vector<Sender> senders_;
  std::vector<Receiver> receivers_;
};

}  // namespace

Outcome exchange(Messages messages, const Links& links, const base::Cut& abort, ExchangeFault fault) {
  return Exchange(std::move(messages), links, abort, fault).run();
}

}  // namespace ddp::fake_gpu
