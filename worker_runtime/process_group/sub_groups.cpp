// ProcessGroup::split and new_group: the ranks tell each other what they want, and each makes of it the list of ranks
// of its new group; the backend does the rest.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/fnv1a.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/process_group/all_gather_words.hpp"
#include "worker_runtime/process_group/checks.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"
#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp {

namespace {

using process_group::GroupMember;
using process_group::Within;

// Collective. `ranks` are of the new group, by their rank there, or empty for one that is in none. `number` tells it
// from all other groups that were made of this one.
ProcessGroup make_sub_group(ProcessGroup::Impl& group, const std::vector<int>& ranks, int number,
                            CollectiveOptions options) {
  GroupMember member = group.member();
  member.name += "/" + std::to_string(number);
  const auto place = std::find(ranks.begin(), ranks.end(), member.rank);
  member.rank = static_cast<int>(place - ranks.begin());
  member.size = static_cast<int>(ranks.size());
  const auto timeout = process_group::checked_timeout(group, options, "split");
  auto backend = group.backend().split(member, ranks, timeout);
  if (!backend) return {};
  auto made = std::make_shared<ProcessGroup::Impl>(member, group.timeout(), std::move(backend), false);
  group.add_sub_group(made);
  return ProcessGroup(std::move(made));
}

void check_list(const std::vector<int>& ranks, int size) {
  if (ranks.empty()) throw InvalidArgument("new_group: no ranks\ntry:   one rank at least");
  std::vector<bool> seen(static_cast<std::size_t>(size));
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size) {
      throw InvalidArgument("new_group: there is no rank " + std::to_string(rank) + ", ranks are 0 to " +
                            std::to_string(size - 1));
    }
    if (seen[static_cast<std::size_t>(rank)]) {
      throw InvalidArgument("new_group: rank " + std::to_string(rank) + " is in the list twice");
    }
    seen[static_cast<std::size_t>(rank)] = true;
  }
}

std::int64_t hash_of(const std::vector<int>& ranks) {
  base::Fnv1a hash;
  for (const int rank : ranks) hash.add(static_cast<std::uint64_t>(rank));
  return static_cast<std::int64_t>(hash.value());
}

}  // namespace

ProcessGroup ProcessGroup::split(int color, int key, CollectiveOptions options) {
  Impl& group = process_group::require_group(impl_);
  process_group::require_not_coalescing(group, "split");
  const auto all = process_group::all_gather_words(*this, {color, key}, Within::split, options);
  std::vector<std::pair<std::int64_t, int>> members;  // (key, rank)
  std::set<std::int64_t> colors;                      // each of them becomes a group
  for (int rank = 0; rank < size(); ++rank) {
    const std::size_t at = 2 * static_cast<std::size_t>(rank);
    if (all[at] >= 0) colors.insert(all[at]);
    if (color >= 0 && all[at] == color) members.emplace_back(all[at + 1], rank);
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& member : members) ranks.push_back(member.second);
  const auto place = static_cast<int>(std::distance(colors.begin(), colors.find(color)));
  const int number = group.sub_group_count + 1 + place;
  group.sub_group_count += static_cast<int>(colors.size());
  return make_sub_group(group, ranks, number, options);
}

ProcessGroup ProcessGroup::new_group(const std::vector<int>& ranks, CollectiveOptions options) {
  Impl& group = process_group::require_group(impl_);
  process_group::require_not_coalescing(group, "new_group");
  check_list(ranks, size());
  const std::vector<std::int64_t> own{static_cast<std::int64_t>(ranks.size()), hash_of(ranks)};
  const auto all = process_group::all_gather_words(*this, own, Within::new_group, options);
  for (std::size_t at = 0; at < all.size(); at += 2) {
    if (all[at] == all[0] && all[at + 1] == all[1]) continue;
    throw MismatchError("new_group: ranks 0 and " + std::to_string(at / 2) + " want different ranks; this one (" +
                        std::to_string(rank()) + ") wants " + process_group::list_ranks(ranks) +
                        "\ntry:   the same list, in the same order, on every rank of the group");
  }
  const bool is_member = std::find(ranks.begin(), ranks.end(), rank()) != ranks.end();
  return make_sub_group(group, is_member ? ranks : std::vector<int>{}, ++group.sub_group_count, options);
}

}  // namespace ddp
