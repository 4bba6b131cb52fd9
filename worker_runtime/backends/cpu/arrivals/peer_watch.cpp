#include "worker_runtime/backends/cpu/arrivals/peer_watch.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "base/quiet_thread.hpp"
#include "base/throw_errno.hpp"

namespace ddp::cpu_backend {

namespace {

constexpr std::uint32_t kStop = 0xffff'ffff;  // an index beyond every rank
constexpr std::size_t kAtOnce = 16;

}  // namespace

PeerWatch::PeerWatch(std::vector<base::UniqueFd> pidfds, std::function<void(int rank)> ended)
    : pidfds_(std::move(pidfds)), ended_(std::move(ended)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) base::throw_errno("eventfd");
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) base::throw_errno("epoll_create1");
  add(stop_.get(), kStop);
  for (std::size_t i = 0; i < pidfds_.size(); ++i) {
    if (pidfds_[i]) add(pidfds_[i].get(), static_cast<std::uint32_t>(i));
  }
  thread_ = base::start_quiet_thread([this] { watch(); });
}

PeerWatch::~PeerWatch() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

base::UniqueFd PeerWatch::duplicate(int rank) const {
  const base::UniqueFd& pidfd = pidfds_[static_cast<std::size_t>(rank)];
  if (!pidfd) return {};
  base::UniqueFd copy(::fcntl(pidfd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) base::throw_errno("fcntl");
  return copy;
}

void PeerWatch::add(int fd, std::uint32_t index) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = index;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) base::throw_errno("epoll_ctl");
}

void PeerWatch::watch() {
  std::array<epoll_event, kAtOnce> events{};
  for (;;) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {  // none after EINTR, the only error there can be
      const std::uint32_t index = events[static_cast<std::size_t>(i)].data.u32;
      if (index == kStop) return;
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pidfds_[index].get(), nullptr);
      ended_(static_cast<int>(index));
    }
  }
}

}  // namespace ddp::cpu_backend
