// How the ranks of a group meet. Rank 0 is the coordinator. It publishes its endpoint in the store: a unix socket with
// a random name for the ranks of its own host, and a TCP port with a secret for the ranks of other hosts. The other
// ranks, its followers, connect there. When all have connected, rank 0 sends the layout: which ranks share a host. On
// each other host the lowest rank, the leader, then coordinates the ranks of its host through a unix socket of its own.
//
// Over a unix socket a rank says who it is, and receives its host's shared file and a pidfd of every other rank there.
// Each pair of leaders is connected twice. Only these connections stay open after the meeting.
//
// The coordinator removes its keys before it says that the meeting is complete. So a later program in the same workers
// can use the same keys. A follower that reads the endpoint of an earlier program waits for the next one.
//
// The end of a process is noticed during the meeting: on the same host by its pidfd, from another host by the end of
// its connection. At the deadline the error of every rank names the missing ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "ddp/bootstrap.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

struct Peer {
  int pid = 0;
  base::UniqueFd pidfd;  // empty for this rank itself
};

// Between this host's leader and another's.
struct LinkSockets {
  TcpSocket data;
  TcpSocket news;
};

// Makes the file that the ranks of a host share, on the leader of that host. Throws std::system_error.
using MakeSharedFile = std::function<base::UniqueFd(const HostLayout& layout, int host)>;

struct Meeting {
  base::UniqueFd shared_file;  // of this host; empty if the group makes none
  std::vector<Peer> peers;     // by index among this host's ranks
  HostLayout layout;
  std::vector<LinkSockets> links;  // by host, on a leader among several; empty for its own, and for everybody else
  NetworkOptions network{};        // for connections that are made later
  std::vector<int> job_ranks{};    // of a group that is part of another: those of the whole job, by rank; else empty
};

struct MeetingPlace {
  Store& store;
  std::string key_prefix;             // of this group in the store, "ddp/.../"
  NetworkOptions network{};           // should there be several hosts
  MakeSharedFile make_shared_file{};  // empty: the ranks of a host share no file
};

// Returns when all ranks are there. Throws TimeoutError at the deadline, RankFailure where a rank ended or turned away,
// InvalidArgument where two processes claim one rank, StoreError, and Error where the system refuses something.
Meeting meet(const process_group::GroupMember& member, const MeetingPlace& place, base::Deadline& deadline);

// Of a group of one: nobody to meet. Throws Error.
Meeting meet_alone(const MakeSharedFile& make_shared_file);

}  // namespace ddp::core
