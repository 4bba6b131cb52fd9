// How the ranks of one host meet: rank 0 listens on a unix socket whose random name it publishes in the store; the
// others connect, say who they are, and get the group's shared file and a pidfd of every other rank. Nothing stays open
// but these.
//
// The keys are removed before anybody hears that all are there, so that a program that runs after this one in the same
// workers can use them again; a guest that comes upon the name of a socket that is gone waits for the next.
//
// The end of a process is noticed during the meeting too. At the deadline everybody's error names the missing ranks.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/io/deadline.hpp"
#include "rendezvous/io/unique_fd.hpp"
#include "rendezvous/store/client.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::cpu_backend {

struct Peer {
  int pid = 0;
  io::UniqueFd pidfd;  // empty for this rank itself
};

struct Meeting {
  io::UniqueFd shared_file;  // see SharedMemory::make_file
  std::vector<Peer> peers;   // by rank
};

struct MeetingPlace {
  store::Client& store;
  std::string key_prefix;  // of this group in the store, "ddp/.../"
};

// Returns when all ranks are there. Throws TimeoutError at the deadline, RankFailure where a rank ended or turned away,
// InvalidArgument where two processes claim one rank, StoreError, and Error where the system refuses something.
Meeting meet(const process_group::Membership& membership, const MeetingPlace& place, io::Deadline& deadline);

// Of a group of one: nobody to meet. Throws Error.
Meeting meet_alone();

}  // namespace ddp::cpu_backend
