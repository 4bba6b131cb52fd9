// The side of a meeting (meeting.hpp) that holds a door: rank 0, for its own host and for all others, and on every
// other host the leader, for its own.
#pragma once

#include <string>

#include "worker_runtime/core/bootstrap/meeting.hpp"

namespace ddp::core {

// Throws as meet(). Whatever it throws, the verdict is out before the guests' connections close.

// Rank 0's.
Meeting hold_meeting(const process_group::Membership& who, const MeetingPlace& place, io::Deadline& deadline);

// Another leader's. `chair` is its connection to rank 0, at `address`, and `hello` what opened it.
struct Chair {
  TcpSocket socket;
  std::string address;
  Hello hello;
};
Meeting hold_meeting_of_host(const process_group::Membership& who, const MeetingPlace& place, HostLayout layout,
                             Chair chair, io::Deadline& deadline);

}  // namespace ddp::core
