#include "worker_runtime/cpu_backend/peer_watch.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "worker_runtime/cpu_backend/quiet_thread.hpp"

namespace ddp::cpu_backend {

PeerWatch::PeerWatch(std::vector<io::UniqueFd> pidfds, std::function<void(int rank)> ended)
    : pidfds_(std::move(pidfds)), ended_(std::move(ended)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) throw std::system_error(errno, std::generic_category(), "eventfd");
  thread_ = start_quiet_thread([this] { watch(); });
}

PeerWatch::~PeerWatch() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void PeerWatch::watch() {
  std::vector<pollfd> polled{{stop_.get(), POLLIN, 0}};
  for (const io::UniqueFd& pidfd : pidfds_) polled.push_back({pidfd.get(), POLLIN, 0});  // -1 is passed over
  for (;;) {
    ::poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) return;
    for (std::size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      polled[i] = {-1, 0, 0};
      ended_(static_cast<int>(i - 1));
    }
  }
}

}  // namespace ddp::cpu_backend
