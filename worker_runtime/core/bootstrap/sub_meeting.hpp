// How the ranks of a group meet that is part of another one, without the store: what they have to know of each other
// goes through the parent group, step by step, and all of its ranks take each step together. So every wait is one of
// the parent's collectives, with its deadline and its way to name who is missing or lost; what a rank leaves for
// another in one step is there in the next.
//
//   open       the leader of each host of a new group makes the shared file, and listens: on a unix socket, and, where
//              the group has several hosts, at a TCP port
//   knock      the others connect to their leader; a leader to those of the hosts before its own
//   let in     a leader sends the file to the ranks of its host, and takes in the leaders behind it
//   take       the ranks take the file, and duplicates of the parent's pidfds, and make the group, which maps the file
//   begin      the group begins: its ranks wait for each other
//
// Nothing stays open but the file, these duplicates and the connections between the leaders.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "rendezvous/io/deadline.hpp"
#include "worker_runtime/core/bootstrap/meeting.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

// What a meeting needs of the group that it is held in. `gather` is collective: every rank gives equally many bytes,
// and gets those of all, rank after rank. It throws what ends the parent.
struct ParentGroup {
  const process_group::Membership& who;
  const HostLayout& layout;
  const std::vector<int>& pids;                           // by rank; of this host's ranks
  std::function<io::UniqueFd(int rank)> duplicate_pidfd;  // of another rank of this host; throws std::system_error
  MakeSharedFile make_shared_file;
  const NetworkOptions& network;
  const std::vector<int>& job_ranks;  // by rank
  std::function<std::vector<std::byte>(std::span<const std::byte> own)> gather;
};

struct NewGroup {
  process_group::Membership who{};
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
void meet_within(const ParentGroup& parent, const NewGroup& made, const GroupSteps& group, io::Deadline& deadline);

}  // namespace ddp::core
