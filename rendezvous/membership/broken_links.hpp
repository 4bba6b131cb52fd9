// Tells a broken link between two hosts from a rank that hangs, when a round has ended in which ranks waited for other
// ranks in vain.
//
// A node says which ranks are on hosts that gave it no answer. That alone proves nothing: such a rank may hang. If the
// node of that rank says that all its ranks answer, and had entered a call too, no rank there hangs, and the link
// between the two nodes is broken.
//
// Pure.
#pragma once

#include <compare>
#include <cstddef>
#include <set>
#include <vector>

namespace ddp::rendezvous {

// What one node has said of its links when it had ended the round.
struct NodeLinks {
  int group_rank = 0;
  int rank_first = 0, rank_count = 1;
  std::vector<int> unreached{};  // these two as RoundEnded has them
  bool were_in_call = false;
};

constexpr std::size_t kBrokenLinksMax = 1024;

// Of two nodes, by group rank; a < b.
struct BrokenLink {
  int a = 0, b = 0;
  auto operator<=>(const BrokenLink&) const = default;
};

// In order. None if a rank that some node did not reach may hang, or belongs to no node here: that explains the rest.
// None if there are more than kBrokenLinksMax, either: then it is the network. Requires nodes in the order of ranks.
std::vector<BrokenLink> broken_links(const std::vector<NodeLinks>& nodes);

// Group ranks of the nodes without which no link is broken, in order. The node with the most broken links goes first,
// of equal ones one that is not among those to keep, and of these that with the highest group rank.
std::vector<int> nodes_to_leave_out(std::vector<BrokenLink> links, const std::set<int>& keep = {});

}  // namespace ddp::rendezvous
