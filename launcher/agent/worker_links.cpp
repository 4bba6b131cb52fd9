#include "launcher/agent/worker_links.hpp"

#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <system_error>
#include <utility>

namespace ddp::launcher {
namespace {

constexpr int kPacketsPerWakeUp = 16;  // then others get their turn
constexpr int kPacketsAtTheEnd = 256;  // a descendant of the worker may go on sending

}  // namespace

WorkerLinks::WorkerLinks(boost::asio::io_context& io, int workers, Handlers handlers)
    : io_(io), handlers_(std::move(handlers)), links_(static_cast<std::size_t>(workers)) {}

base::UniqueFd WorkerLinks::open(int local_rank) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    throw std::system_error(errno, std::generic_category(), "socketpair for a worker");
  base::UniqueFd workers_end(pair[1]);
  link_of(local_rank).emplace(io_, pair[0]);
  listen(local_rank);
  return workers_end;
}

void WorkerLinks::close(int local_rank) { link_of(local_rank).reset(); }

void WorkerLinks::listen(int local_rank) {
  link_of(local_rank)
      ->async_wait(boost::asio::posix::stream_descriptor::wait_read,
                   [this, local_rank](boost::system::error_code error) {
                     if (error) return;
                     for (int i = 0; i < kPacketsPerWakeUp; ++i)
                       if (!read(local_rank)) break;
                     if (link_of(local_rank)) listen(local_rank);
                   });
}

void WorkerLinks::hear_out() {
  for (std::size_t local_rank = 0; local_rank < links_.size(); ++local_rank)
    for (int i = 0; i < kPacketsAtTheEnd; ++i)
      if (!read(static_cast<int>(local_rank))) break;
}

// One packet; false where there is none.
bool WorkerLinks::read(int local_rank) {
  auto& link = link_of(local_rank);
  if (!link) return false;
  char packet[worker_link::kPacketBytesMax + 1];
  ssize_t length = -1;
  do {
    length = ::recv(link->native_handle(), packet, sizeof packet, MSG_DONTWAIT);
  } while (length < 0 && errno == EINTR);
  if (length < 0 && errno == EAGAIN) return false;
  if (length <= 0) {  // nobody holds the other end
    close(local_rank);
    return false;
  }
  const auto message = worker_link::parse_from_worker({packet, static_cast<std::size_t>(length)});
  if (!message) {
    lose(local_rank, LinkFault::says_nonsense);
    return false;
  }
  handlers_.heard(local_rank, *message);
  return true;
}

void WorkerLinks::send(int local_rank, const worker_link::ToWorker& message) {
  auto& link = link_of(local_rank);
  if (!link) return;
  const auto packet = worker_link::encode(message);
  ssize_t sent = -1;
  do {
    sent = ::send(link->native_handle(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0 && errno != EPIPE) lose(local_rank, LinkFault::does_not_read);
}

void WorkerLinks::send_to_all(const worker_link::ToWorker& message) {
  for (std::size_t i = 0; i < links_.size(); ++i) send(static_cast<int>(i), message);
}

void WorkerLinks::lose(int local_rank, LinkFault fault) {
  close(local_rank);
  boost::asio::post(
      io_, [this, local_rank, fault] { handlers_.lost(local_rank, fault); });  // the caller may be at its state
}

}  // namespace ddp::launcher
