// The followers of rank 0 on other hosts (meeting.hpp): all ranks there until each knows the layout, then only the
// leaders of those hosts.
//
// Threads: one caller at a time. Errors: RankFailure for a rank that is lost or breaks the protocol, the error of the
// published verdict if there is one, MeetingTimedOut at the deadline.
#pragma once

#include <poll.h>

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

class RemoteFollowers {
 public:
  // `deadline` and the store of `place` outlive this.
  RemoteFollowers(const process_group::GroupMember& who, const MeetingPlace& place, base::Deadline& deadline)
      : who_(who), place_(place), deadline_(deadline) {}

  bool has(int rank) const { return followers_.contains(rank); }
  const std::string& identity_of(int rank) const { return followers_.at(rank).identity; }  // of its host

  // Tells the follower that it is accepted. Requires that it is none of these yet.
  void add(Acceptor::Arrival& arrival);

  // Appends what to poll for.
  void add_to(std::vector<pollfd>& polled) const;
  // Takes in the messages of followers, given the polled entries, and returns the followers that are lost. Waits up to
  // the deadline for the rest of a message.
  std::vector<int> take(std::span<const pollfd> polled);

  // To all; from here on only leaders are followers.
  void send_layout(const HostLayout& layout);
  bool are_ready() const;
  // Requires that they are ready. `own`: of rank 0.
  void send_endpoints(const HostLayout& layout, const Endpoint& own);
  std::vector<int> unlinked() const;
  void send_complete();

 private:
  struct Follower {
    TcpSocket socket;
    std::string identity{};
    std::optional<Endpoint> endpoint{};  // of a leader that is ready
    bool linked = false;
  };

  bool receive(int rank, Follower& follower);
  void send(int rank, std::span<const std::byte> bytes);

  process_group::GroupMember who_;
  MeetingPlace place_;
  base::Deadline& deadline_;
  std::map<int, Follower> followers_;  // by rank
  bool has_sent_layout_ = false;
};

}  // namespace ddp::core
