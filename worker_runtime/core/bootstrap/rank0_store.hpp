// The store of ranks whose launcher serves none: rank 0 does, in its own process and until that ends, and the others
// look for it.
//
// On which of a few ports it is, rank 0 finds out by trying, and so do the others, again and again until their
// deadline. The key ddp/job says whose a store is, ddp/process_<rank> which process of a rank it serves: one of each,
// and for good. So the ranks of a program that runs after another one in the same step do not take the other's store
// for theirs while the other's rank 0 is still busy ending.
//
// Threads: any.
// Fork:    a forked child serves nothing, and has found nothing yet.
#pragma once

#include <string>

#include "base/deadline.hpp"
#include "rendezvous/store/client.hpp"
#include "worker_runtime/core/bootstrap/launch.hpp"

namespace ddp::core {

// On rank 0 the store is there when this returns. Requires launch.own_store. Throws TimeoutError, with what was at each
// port; Error where rank 0 can't serve it; InvalidArgument for a malformed `allow` (DDPRUN_STORE_ALLOW: blocks of
// addresses with commas between); AbortedError where the deadline is cut.
store::Client connect_to_rank0(const Launch& launch, const std::string& allow, base::Deadline& deadline);

// Every rank calls it once it needs the store no more to make a group. On rank 0 it returns when all have, as its
// process may end then; but after a while it returns even so.
void leave_rank0(const Launch& launch, Store& store, const std::string& key_prefix, const base::Deadline& deadline);

// On rank 0, once it has failed to make a group: returns when nobody is connected to its store, who might still read
// there why; but after a while it returns even so.
void wait_for_the_others_to_leave();

// On rank 0, whom its store has turned away and why, in lines for the end of a message; else empty.
std::string refusals_of_own_store();

}  // namespace ddp::core
