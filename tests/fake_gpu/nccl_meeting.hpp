// The beginning of a communicator: all ranks meet at rank 0, whose address is in the unique id, tell each other where
// they run, and connect each to each.
#pragma once

#include <string>
#include <vector>

#include "base/cut.hpp"
#include "base/unique_fd.hpp"
#include "tests/fake_gpu/nccl_sockets.hpp"

namespace ddp::fake_gpu {

using Links = std::vector<base::UniqueFd>;  // by rank; none to itself

// What a rank tells all others.
struct Whereabouts {
  int rank = 0;
  int size = 0;
  char host[64] = {};  // NCCL_HOSTID, or the host's name
  int device = 0;      // its number on the host
};

// The address of a rank that meets under this name.
std::string address_of(const std::string& name, int rank);

// Each tells the others where it is; `all` by rank. Rank 0 gives the listener at its address, the others none. A rank
// that contradicts another (another size, or the same rank) makes a mismatch on rank 0.
Outcome meet(const std::string& name, const Whereabouts& own, int listener, const base::Cut& abort,
             std::vector<Whereabouts>& all);

// Connects the ranks at these addresses, of which this one is number `own` and has the listener. All of them must be
// listening already.
Outcome connect_all(const std::vector<std::string>& addresses, int own, int listener, const base::Cut& abort,
                    Links& links);

}  // namespace ddp::fake_gpu
