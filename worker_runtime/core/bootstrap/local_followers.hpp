// The followers of a coordinator that are on its own host (meeting.hpp): their connections, and the descriptors that
// tell the end of each process.
//
// Threads: one caller at a time. Errors: sending throws RankFailure if the follower has closed its connection, Error at
// the deadline, std::system_error where the system refuses something.
#pragma once

#include <poll.h>

#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

class LocalFollowers {
 public:
  // `deadline` outlives this. Throws std::system_error.
  LocalFollowers(const process_group::GroupMember& who, base::Deadline& deadline);

  bool has(int rank) const { return static_cast<bool>(followers_[static_cast<std::size_t>(rank)].socket); }
  int pid_of(int rank) const { return followers_[static_cast<std::size_t>(rank)].peer.pid; }

  // Greets the follower whose Hello has come. Requires that it is none of these yet.
  void add(Message& hello, base::UniqueFd socket);

  // Appends what to poll for.
  void add_to(std::vector<pollfd>& polled) const;
  // The followers that have ended, given the polled entries. Throws MeetingTimedOut if one says so.
  std::vector<int> take_lost(std::span<const pollfd> polled) const;

  // `here`: all ranks of this host, this one included.
  void send_layout(const HostLayout& layout, const std::vector<int>& here);
  void send_peers(const std::vector<int>& here);
  // Ignores a lost follower: from here on the group itself notices that, and some ranks may be in it already.
  void send_complete(const std::vector<int>& here, int shared_file);

  // In the order of `here`; nothing may be sent afterwards.
  std::vector<Peer> take_peers(const std::vector<int>& here);

 private:
  struct Follower {
    base::UniqueFd socket;
    Peer peer;
  };

  bool is_polled(int rank) const;
  bool send(int follower, const Message& message, int fd);
  void send_or_fail(int follower, const Message& message, int fd);

  process_group::GroupMember who_;
  base::Deadline& deadline_;
  base::UniqueFd own_end_;
  std::vector<Follower> followers_;  // by rank; empty but for those of this host that have connected
};

}  // namespace ddp::core
