// The coordinator's side of a meeting (meeting.hpp): rank 0 for its own host and all others, and on every other host
// the leader for its own.
#pragma once

#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/core/bootstrap/rank0_link.hpp"

namespace ddp::core {

// Throw as meet(). The verdict is published before the connections of the followers close.

// Rank 0's.
Meeting coordinate_meeting(const process_group::GroupMember& who, const MeetingPlace& place, base::Deadline& deadline);

// Another leader's.
Meeting coordinate_host(const process_group::GroupMember& who, const MeetingPlace& place, HostLayout layout,
                        CoordinatorLink rank0, base::Deadline& deadline);

}  // namespace ddp::core
