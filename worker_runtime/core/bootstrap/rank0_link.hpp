// The connection of another host's leader to rank 0 while the group meets (meeting.hpp).
//
// Threads: one caller at a time. Errors: the error of the published verdict, or RankFailure, if rank 0 is lost;
// MeetingTimedOut at the deadline.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/core/bootstrap/meeting_messages.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

// A connection to rank 0, at `address`, and `hello` what opened it.
struct CoordinatorLink {
  TcpSocket socket;
  std::string address;
  RankHello hello;
};

class Rank0Link {
 public:
  // `deadline` and the store of `place` outlive this.
  Rank0Link(CoordinatorLink link, const process_group::GroupMember& who, const MeetingPlace& place,
            base::Deadline& deadline)
      : link_(std::move(link)), who_(who), place_(place), deadline_(deadline) {}

  int descriptor() const { return link_.socket.get(); }
  const std::string& address() const { return link_.address; }
  std::string secret() const { return text_in(link_.hello.secret); }

  void send(const FollowerMessage& message);
  // Waits up to the deadline for all of it.
  void receive(std::span<std::byte> bytes);

  // To be called when the descriptor is readable.
  void look();
  // Whether look() found what receive() has not taken yet.
  bool has_sent() const { return has_sent_; }

 private:
  CoordinatorLink link_;
  process_group::GroupMember who_;
  MeetingPlace place_;
  base::Deadline& deadline_;
  bool has_sent_ = false;
};

}  // namespace ddp::core
