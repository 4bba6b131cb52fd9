#include "worker_runtime/agent_link/packet_listener.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "base/event_fd.hpp"
#include "base/quiet_thread.hpp"
#include "ddp/error.hpp"
#include "rendezvous/worker_link/message.hpp"

namespace ddp::agent_link {

PacketListener::PacketListener(int socket, const base::ForkGuard& fork_guard, Take take)
    : socket_(socket), fork_guard_(fork_guard), take_(std::move(take)), stop_(base::make_event()) {}

PacketListener::~PacketListener() {
  if (fork_guard_.in_forked_child()) {
    if (thread_.joinable()) thread_.detach();  // it is the parent's
    return;
  }
  base::ring(stop_);
  if (thread_.joinable()) thread_.join();
}

void PacketListener::start() {
  if (thread_.joinable()) return;
  try {
    thread_ = base::start_quiet_thread([this] { listen(); });
  } catch (const std::system_error& error) {
    throw Error(std::string("no thread that listens to ddprun: ") + error.what() +
                "\ntry:   a higher limit (ulimit -u)");
  }
}

void PacketListener::listen() const {
  pollfd polled[] = {{socket_, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  while (true) {
    if (::poll(polled, 2, -1) < 0) continue;  // EINTR, the only error there can be
    if (polled[1].revents != 0) return;
    if (polled[0].revents != 0 && !receive()) polled[0].fd = -1;  // nobody is there any more
  }
}

// Whether there is more to come.
bool PacketListener::receive() const {
  std::vector<char> packet(worker_link::kPacketBytesMax);
  const auto length = ::recv(socket_, packet.data(), packet.size(), MSG_DONTWAIT);
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  take_({packet.data(), static_cast<std::size_t>(length < 0 ? 0 : length)});
  return length > 0;
}

}  // namespace ddp::agent_link
