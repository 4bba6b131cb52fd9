// How the ranks of a group meet that is part of another one. They need no store: they exchange their endpoints through
// the parent group. All ranks of the parent take the steps below together. So every wait is a collective of the parent,
// which has a deadline and names the ranks that are missing or lost.
//
//   open       the leader of each host of a new group makes the shared file, and listens on a unix socket; if the group
//              has several hosts, also at a TCP port
//   connect    the other ranks of a host connect to their leader; a leader connects to the leaders of earlier hosts
//   accept     a leader sends the file to the ranks of its host, and accepts the connections of later leaders
//   receive    the ranks receive the file, duplicate the parent's pidfds and make the group, which maps the file
//   begin      the group begins: its ranks wait for each other
//
// Only the file, the pidfds and the connections between the leaders stay open.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

// What a meeting needs of the group that it is held in. `gather` is collective: every rank gives equally many bytes,
// and gets those of all, rank after rank. It throws what ends the parent.
struct ParentGroup {
  const process_group::GroupMember& who;
  const HostLayout& layout;
  const std::vector<int>& pids;                             // by rank; of this host's ranks
  std::function<base::UniqueFd(int rank)> duplicate_pidfd;  // of another rank of this host; throws std::system_error
  MakeSharedFile make_shared_file;
  const NetworkOptions& network;
  const std::vector<int>& job_ranks;  // by rank
  std::function<std::vector<std::byte>(std::span<const std::byte> own)> gather;
};

struct NewGroup {
  process_group::GroupMember who{};
  std::vector<int> ranks{};  // of the parent, by rank in the new group; empty for one that is in none
};

// A group's own part in the last two steps, on ranks that are in one. `make` waits for nobody.
struct GroupSteps {
  std::function<void(Meeting& meeting)> make;
  std::function<void(Meeting meeting)> begin;
};

// Collective over the parent. Throws what `gather` throws, and Error, on all ranks, where one can't do its part,
// `group` included: then the parent goes on. `deadline` is for waits that are none of the parent's; what ends the
// parent is to cut it.
void meet_within(const ParentGroup& parent, const NewGroup& made, const GroupSteps& group, base::Deadline& deadline);

}  // namespace ddp::core
