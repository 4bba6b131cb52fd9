#include "worker_runtime/core/bootstrap/remote_followers.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ddp/error.hpp"
#include "worker_runtime/core/bootstrap/meeting_errors.hpp"
#include "worker_runtime/core/bootstrap/meeting_messages.hpp"
#include "worker_runtime/core/bootstrap/meeting_verdict.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"

namespace ddp::core {

void RemoteFollowers::add(Acceptor::Arrival& arrival) {
  const int rank = arrival.hello.rank;
  followers_[rank] = {std::move(arrival.socket), "remote " + text_in(arrival.hello.host)};
  send(rank, std::as_bytes(std::span(&kAccepted, 1)));
}

void RemoteFollowers::add_to(std::vector<pollfd>& polled) const {
  for (const auto& [rank, follower] : followers_) polled.push_back({follower.socket.get(), POLLIN, 0});
}

std::vector<int> RemoteFollowers::take(std::span<const pollfd> polled) {
  std::vector<int> lost;
  std::size_t at = 0;
  for (auto& [rank, follower] : followers_) {
    if (is_readable(polled[at++]) && !receive(rank, follower)) lost.push_back(rank);
  }
  return lost;
}

// False if the follower is lost.
bool RemoteFollowers::receive(int rank, Follower& follower) {
  FollowerMessage message;
  try {
    if (!receive_all(follower.socket.get(), std::as_writable_bytes(std::span(&message, 1)), deadline_)) return true;
  } catch (const ConnectionLost&) {
    if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
    return false;
  }
  switch (message.kind) {
    case FollowerMessage::Kind::timed_out: throw MeetingTimedOut();
    case FollowerMessage::Kind::ready:
      if (!has_sent_layout_ || follower.endpoint) break;
      follower.endpoint = Endpoint{text_in(message.address), static_cast<std::uint16_t>(message.port)};
      return true;
    case FollowerMessage::Kind::linked:
      if (!follower.endpoint || follower.linked) break;
      follower.linked = true;
      return true;
  }
  throw RankFailure("rank " + std::to_string(rank) + " sent what no rank sends at this point" + where(who_) +
                        "\ntry:   start all ranks with the same version of libddp",
                    {rank});
}

void RemoteFollowers::send_layout(const HostLayout& layout) {
  std::vector<std::int32_t> host_of;
  for (int rank = 0; rank < layout.size(); ++rank) host_of.push_back(layout.host_of(rank));
  has_sent_layout_ = true;
  for (const auto& [rank, follower] : followers_) send(rank, std::as_bytes(std::span(host_of)));
  std::erase_if(followers_,
                [&](const auto& each) { return layout.leader_of(layout.host_of(each.first)) != each.first; });
}

bool RemoteFollowers::are_ready() const {
  return std::all_of(followers_.begin(), followers_.end(), [](const auto& each) { return each.second.endpoint; });
}

void RemoteFollowers::send_endpoints(const HostLayout& layout, const Endpoint& own) {
  std::vector<LeaderEndpoint> all(static_cast<std::size_t>(layout.host_count()));
  const auto put = [&](int rank, const Endpoint& endpoint) {
    LeaderEndpoint& entry = all[static_cast<std::size_t>(layout.host_of(rank))];
    entry.port = endpoint.port;
    put_text(entry.address, endpoint.address);
  };
  put(who_.rank, own);
  for (const auto& [rank, follower] : followers_) put(rank, *follower.endpoint);
  for (const auto& [rank, follower] : followers_) send(rank, std::as_bytes(std::span(all)));
}

std::vector<int> RemoteFollowers::unlinked() const {
  std::vector<int> ranks;
  for (const auto& [rank, follower] : followers_) {
    if (!follower.linked) ranks.push_back(rank);
  }
  return ranks;
}

void RemoteFollowers::send_complete() {
  for (const auto& [rank, follower] : followers_) send(rank, std::as_bytes(std::span(&kComplete, 1)));
}

void RemoteFollowers::send(int rank, std::span<const std::byte> bytes) {
  try {
    if (send_all(followers_.at(rank).socket.get(), bytes, deadline_)) return;
  } catch (const ConnectionLost&) {
    throw_lost(who_, {rank});
  }
  throw MeetingTimedOut();
}

}  // namespace ddp::core
