// Which ranks are on this host, where no launcher has said so: the ranks tell each other at the store.
//
// Keys, below the group's prefix: came (how many have), came/<rank>, on/<host identity> (the ranks there, with commas),
// all_came.
#pragma once

#include <string>

#include "rendezvous/io/deadline.hpp"
#include "rendezvous/store/client.hpp"

namespace ddp::process_group {

struct LocalRanks {
  int rank = 0;  // among those of this host, in the order of their ranks
  int size = 1;
};

// Collective over all ranks. `host`: the same for all ranks of a host, and for no others. Throws TimeoutError, with the
// ranks that did not come.
LocalRanks find_local_ranks(int rank, int size, const std::string& host, store::Client& store,
                            const std::string& key_prefix, const io::Deadline& deadline);

}  // namespace ddp::process_group
