#include "rendezvous/membership/broken_links.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace ddp::rendezvous {

std::vector<BrokenLink> broken_links(const std::vector<NodeLinks>& nodes) {
  std::set<BrokenLink> links;
  for (const auto& node : nodes)
    for (const int rank : node.unreached) {
      const auto after = std::upper_bound(nodes.begin(), nodes.end(), rank,
                                          [](int its, const NodeLinks& other) { return its < other.rank_first; });
      if (after == nodes.begin()) return {};
      const auto& unreached = *(after - 1);
      if (rank - unreached.rank_first >= unreached.rank_count || !unreached.were_in_call) return {};
      if (&unreached == &node) continue;
      links.insert({std::min(node.group_rank, unreached.group_rank), std::max(node.group_rank, unreached.group_rank)});
      if (links.size() > kBrokenLinksMax) return {};
    }
  return {links.begin(), links.end()};
}

std::vector<int> nodes_to_leave_out(std::vector<BrokenLink> links, const std::set<int>& keep) {
  std::set<int> out;
  while (!links.empty()) {
    std::map<int, int> counts;
    for (const auto& link : links) {
      ++counts[link.a];
      ++counts[link.b];
    }
    const auto is_better = [&keep](const auto& a, const auto& b) {
      return std::tuple(a.second, keep.count(a.first) == 0, a.first) <
             std::tuple(b.second, keep.count(b.first) == 0, b.first);
    };
    const int worst = std::max_element(counts.begin(), counts.end(), is_better)->first;
    out.insert(worst);
    std::erase_if(links, [&](const BrokenLink& link) { return link.a == worst || link.b == worst; });
  }
  return {out.begin(), out.end()};
}

}  // namespace ddp::rendezvous
