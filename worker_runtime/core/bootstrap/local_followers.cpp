#include "worker_runtime/core/bootstrap/local_followers.hpp"

#include <unistd.h>

#include <exception>
#include <system_error>
#include <utility>

#include "base/connection_closed.hpp"
#include "worker_runtime/core/bootstrap/meeting_errors.hpp"
#include "worker_runtime/core/bootstrap/meeting_verdict.hpp"

namespace ddp::core {

namespace {

// The deadline of a follower may pass a moment before that of the coordinator.
bool says_timed_out(int follower) {
  try {
    const auto message = receive_message(follower);
    return message && message->kind == Message::Kind::timed_out;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

LocalFollowers::LocalFollowers(const process_group::GroupMember& who, base::Deadline& deadline)
    : who_(who), deadline_(deadline), own_end_(own_end()), followers_(static_cast<std::size_t>(who.size)) {
  followers_[static_cast<std::size_t>(who_.rank)].peer.pid = ::getpid();
}

void LocalFollowers::add(Message& hello, base::UniqueFd socket) {
  followers_[static_cast<std::size_t>(hello.rank)] = {std::move(socket), {hello.pid, std::move(hello.fd)}};
  send_or_fail(hello.rank, {Message::Kind::greeting, who_.rank, ::getpid(), {}}, own_end_.get());
}

// Reserves the entries of each rank of this host from the start, so that a limit of open files shows at once.
bool LocalFollowers::is_polled(int rank) const {
  return has(rank) || (who_.local_size == who_.size && rank != who_.rank);
}

void LocalFollowers::add_to(std::vector<pollfd>& polled) const {
  for (int rank = 0; rank < who_.size; ++rank) {
    if (!is_polled(rank)) continue;
    const Follower& follower = followers_[static_cast<std::size_t>(rank)];
    polled.push_back({follower.peer.pidfd.get(), POLLIN, 0});
    polled.push_back({follower.socket.get(), POLLIN, 0});  // a follower sends at most one more message
  }
}

std::vector<int> LocalFollowers::take_lost(std::span<const pollfd> polled) const {
  std::vector<int> lost;
  std::size_t at = 0;
  for (int rank = 0; rank < who_.size; ++rank) {
    if (!is_polled(rank)) continue;
    const pollfd& end = polled[at++];
    const pollfd& socket = polled[at++];
    if (is_readable(socket) && says_timed_out(socket.fd)) throw MeetingTimedOut();
    if (is_readable(end) || is_readable(socket)) lost.push_back(rank);
  }
  return lost;
}

void LocalFollowers::send_layout(const HostLayout& layout, const std::vector<int>& here) {
  const base::UniqueFd file = make_layout_file(layout);
  for (const int follower : here) send_or_fail(follower, {Message::Kind::layout, who_.rank, 0, {}}, file.get());
}

void LocalFollowers::send_peers(const std::vector<int>& here) {
  for (const int follower : here) {
    for (const int rank : here) {
      if (rank == follower || rank == who_.rank) continue;
      const Peer& peer = followers_[static_cast<std::size_t>(rank)].peer;
      send_or_fail(follower, {Message::Kind::peer, rank, peer.pid, {}}, peer.pidfd.get());
    }
  }
}

void LocalFollowers::send_complete(const std::vector<int>& here, int shared_file) {
  for (const int follower : here) {
    if (follower == who_.rank) continue;
    static_cast<void>(send(follower, {Message::Kind::complete, who_.rank, ::getpid(), {}}, shared_file));
  }
}

std::vector<Peer> LocalFollowers::take_peers(const std::vector<int>& here) {
  std::vector<Peer> peers;
  for (const int rank : here) peers.push_back(std::move(followers_[static_cast<std::size_t>(rank)].peer));
  return peers;
}

// False if the follower has closed its connection.
bool LocalFollowers::send(int follower, const Message& message, int fd) {
  try {
    send_message(followers_[static_cast<std::size_t>(follower)].socket.get(), message, fd, deadline_);
    return true;
  } catch (const std::system_error& error) {
    if (base::says_connection_closed(error.code().value())) return false;
    throw;
  }
}

void LocalFollowers::send_or_fail(int follower, const Message& message, int fd) {
  if (follower != who_.rank && !send(follower, message, fd)) throw_lost(who_, {follower});
}

}  // namespace ddp::core
