// Gives each node of a round its group rank.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace ddp::rendezvous {

struct RankCandidate {
  std::optional<int> group_rank;  // that it had last
  std::optional<int> wish;
  bool is_endpoint_host = false;
  std::string host_name;
  bool has_older_work = false;   // it comes with a round before the last one
  bool has_newest_work = false;  // its workers kept something, and nobody's did so in a later round
};

// The candidates' indices in the order of their group ranks, at most `nodes_max`. Whoever had a rank keeps it, a wish
// is fulfilled where it can be, the others follow in the order of the endpoint's host and then of host names, and no
// rank is left without a node. Of too many candidates those take part first that have the newest work, then those that
// had a rank, then those with older work.
std::vector<std::size_t> give_group_ranks(const std::vector<RankCandidate>& candidates, std::size_t nodes_max);

// Whether host name `a` goes before `b`: runs of digits compare as numbers, so node2 goes before node10.
bool is_before_naturally(const std::string& a, const std::string& b);

}  // namespace ddp::rendezvous
