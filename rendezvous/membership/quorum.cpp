#include "rendezvous/membership/quorum.hpp"

#include <algorithm>
#include <utility>

namespace ddp::rendezvous {

void Quorum::begin(const std::map<int, std::string>& members) {
  if (current_.is_established) established_ = std::move(current_);
  current_ = {};
  for (const auto& [rank, key] : members) current_.members[key].group_rank = rank;
  current_.unstarted = static_cast<int>(members.size());
}

void Quorum::adopt(int group_world_size, std::optional<int> lost) {
  established_ = {};
  current_ = {};
  current_.is_adopted = true;
  current_.lost = lost;
  current_.unstarted = group_world_size;
  current_.unheard = RankSet::below(group_world_size);
}

void Quorum::seat(int group_rank, const std::string& node_key) {
  if (!current_.unheard.erase(group_rank)) return;
  current_.members[node_key].group_rank = group_rank;
  // All of them know of it: nobody reckons with an older one.
  if (current_.is_adopted && current_.unheard.empty()) current_.is_established = true;
}

void Quorum::end(int group_rank, const std::string& node_key) {
  const auto key = node_key.empty() ? "rank " + std::to_string(group_rank) : node_key;  // one that nobody has
  seat(group_rank, key);
  leave(key, true);
}

bool Quorum::start(const std::string& node_key) {
  const auto found = current_.members.find(node_key);
  if (found == current_.members.end() || std::exchange(found->second.has_started, true)) return false;
  if (--current_.unstarted > 0) return false;
  return !std::exchange(current_.is_established, true);
}

void Quorum::set(RoundMembers& round, const std::string& node_key, Standing standing) {
  const auto found = round.members.find(node_key);
  if (found != round.members.end()) found->second.standing = standing;
}

void Quorum::come(const std::string& node_key) {
  for (auto* round : {&current_, &established_}) set(*round, node_key, Standing::here);
}

void Quorum::leave(const std::string& node_key, bool is_end_proven) {
  const auto standing = is_end_proven ? Standing::gone : Standing::silent;
  for (auto* round : {&current_, &established_}) set(*round, node_key, standing);
}

bool Quorum::knows(const std::string& node_key) const {
  return current_.members.count(node_key) != 0 || established_.members.count(node_key) != 0;
}

int Quorum::silent_count() const {
  const int silent = count(current_).silent;
  return current_.is_established ? silent : std::max(silent, count(established_).silent);
}

bool Quorum::are_all_away() const {
  const auto of_last = count(current_.is_established || current_.is_adopted ? current_ : established_);
  return of_last.here == 0 && of_last.silent > 0;
}

Quorum::Count Quorum::count(const RoundMembers& round, const std::set<std::string>& without) {
  Count out;
  const auto lower = [](std::optional<int>& lowest, int rank) { lowest = lowest ? std::min(*lowest, rank) : rank; };
  for (const auto& [key, member] : round.members) {
    const bool is_out = member.standing == Standing::here && without.count(key) != 0;
    if (member.standing == Standing::here && !is_out) ++out.here, lower(out.lowest_here, member.group_rank);
    if (member.standing == Standing::silent || is_out) ++out.silent, lower(out.lowest_silent, member.group_rank);
  }
  out.silent += static_cast<int>(round.unheard.size());
  if (!round.unheard.empty()) lower(out.lowest_silent, round.unheard.lowest());
  return out;
}

bool Quorum::Count::is_greater_part() const {
  if (here != silent) return here > silent;
  return silent == 0 || *lowest_here < *lowest_silent;
}

bool Quorum::is_greater_part_without(const std::set<std::string>& node_keys) const {
  const auto now = count(current_, node_keys);
  if (current_.is_established) return now.is_greater_part();
  // Those that never heard of an adopted round reckon with one that is not known here. They are not the greater part of
  // it where every member of this one has come: without the greater part no round begins.
  if (current_.is_adopted) {
    const bool is_lost_unheard = current_.lost && current_.unheard.has(*current_.lost);
    return now.silent == (is_lost_unheard ? 1 : 0) && now.is_greater_part();
  }
  return now.is_greater_part() && count(established_, node_keys).is_greater_part();
}

}  // namespace ddp::rendezvous
