// How the ranks of a group meet. Rank 0 publishes two doors in the store: a unix socket with a random name for the
// ranks of its own host, and a TCP port, with a secret, for those of others. Once all have come it tells the others who
// shares a host with whom; there the lowest rank, the leader, opens a unix socket in the same way. Over a unix socket a
// rank says who it is, and gets its host's shared file and a pidfd of every other rank there. Between the leaders there
// are two connections for each pair of hosts. Nothing stays open but these.
//
// The keys are removed before anybody hears that all are there, so that a program that runs after this one in the same
// workers can use them again; a guest that comes upon a door that is gone waits for the next.
//
// The end of a process is noticed during the meeting too; while ranks of another host have not all come, by the end of
// a connection. At the deadline everybody's error names the missing ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rendezvous/io/deadline.hpp"
#include "rendezvous/io/unique_fd.hpp"
#include "rendezvous/store/client.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::core {

struct Peer {
  int pid = 0;
  io::UniqueFd pidfd;  // empty for this rank itself
};

// Between this host's leader and another's.
struct LinkSockets {
  TcpSocket data;
  TcpSocket news;
};

// Makes the file that the ranks of a host share, on the leader of that host. Throws std::system_error.
using MakeSharedFile = std::function<io::UniqueFd(const HostLayout& layout, int host)>;

struct Meeting {
  io::UniqueFd shared_file;  // of this host; empty if the group makes none
  std::vector<Peer> peers;   // by index among this host's ranks
  HostLayout layout;
  std::vector<LinkSockets> links;  // by host, on a leader among several; empty for its own, and for everybody else
  NetworkOptions network{};        // for connections that are made later
  std::vector<int> job_ranks{};    // of a group that is part of another: those of the whole job, by rank; else empty
};

struct MeetingPlace {
  store::Client& store;
  std::string key_prefix;             // of this group in the store, "ddp/.../"
  NetworkOptions network{};           // should there be several hosts
  MakeSharedFile make_shared_file{};  // empty: the ranks of a host share no file
};

// Returns when all ranks are there. Throws TimeoutError at the deadline, RankFailure where a rank ended or turned away,
// InvalidArgument where two processes claim one rank, StoreError, and Error where the system refuses something.
Meeting meet(const process_group::Membership& membership, const MeetingPlace& place, io::Deadline& deadline);

// Of a group of one: nobody to meet. Throws Error.
Meeting meet_alone(const MakeSharedFile& make_shared_file);

}  // namespace ddp::core
