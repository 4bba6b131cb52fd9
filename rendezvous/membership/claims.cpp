#include "rendezvous/membership/claims.hpp"

#include <algorithm>
#include <tuple>

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kEndsKnownMax = 256;

}  // namespace

void Claims::add(const std::string& node_key, const Held& claim, bool is_own) {
  withdraw(node_key);
  const auto nonces = claim.nonces.empty() ? std::vector{to_string(claim.round)} : claim.nonces;
  auto& set = sets_[join_sets(nonces)];
  set.has_nonces = !claim.nonces.empty();
  ++set.claimants;
  set.has_own = set.has_own || is_own;
  const RoundKey key{claim.round, nonces.front()};
  auto& round = set.rounds[key];
  if (++round.claimants == 1) round.claim = claim;
  if (claim.group_rank < round.claim.group_world_size) {
    ++round.ranks[claim.group_rank];
    round.gone.erase(claim.group_rank);
  }
  note_ended(round, claim);
  for (const auto& ended : ended_) note_end(ended, key, round);
  claims_[node_key] = {key, claim.group_rank, is_own};
}

void Claims::note_end(const EndedNode& ended) {
  if (ended_.size() >= kEndsKnownMax) return;
  ended_.push_back(ended);
  for (auto& [id, set] : sets_)
    for (auto& [key, round] : set.rounds) note_end(ended, key, round);
  if (left_) note_end(ended, left_->first, left_->second);
}

void Claims::note_end(const EndedNode& ended, const RoundKey& key, ClaimedRound& round) {
  const bool is_member = key == RoundKey{ended.round, ended.nonce} && ended.group_rank < round.claim.group_world_size;
  if (is_member && round.ranks.count(ended.group_rank) == 0)
    round.gone.insert_or_assign(ended.group_rank, ended.node_key);
}

void Claims::forget() {
  auto ended = std::move(ended_);
  *this = Claims(std::move(endpoint_address_), std::move(lost_));
  ended_ = std::move(ended);
}

void Claims::note_ended(ClaimedRound& round, const Held& claim) const {
  if (claim.round == lost_.round)
    for (const int rank : lost_.others_gone)
      if (rank < claim.group_world_size && round.ranks.count(rank) == 0) round.gone.try_emplace(rank);
  if (endpoint_address_.empty() || claim.endpoint_address != endpoint_address_ || !claim.host_group_rank) return;
  if (round.ranks.count(*claim.host_group_rank) == 0) round.gone.try_emplace(*claim.host_group_rank);
}

// The set of those nonces, made of all sets that have one of them. The smaller ones go into the largest, so that ten
// thousand claims are not ten thousand walks over all of them.
std::size_t Claims::join_sets(const std::vector<std::string>& nonces) {
  std::optional<std::size_t> into;
  for (const auto& nonce : nonces)
    if (const auto found = set_of_.find(nonce); found != set_of_.end())
      if (!into || sets_.at(found->second).nonces.size() > sets_.at(*into).nonces.size()) into = found->second;
  if (!into) into = ++sets_made_;
  for (const auto& nonce : nonces) {
    const auto [found, is_new] = set_of_.emplace(nonce, *into);
    if (is_new) sets_[*into].nonces.push_back(nonce);
    if (found->second == *into) continue;
    auto other = std::move(sets_.extract(found->second).mapped());
    auto& set = sets_[*into];
    set.claimants += other.claimants;
    set.has_own = set.has_own || other.has_own;
    set.rounds.merge(other.rounds);
    for (const auto& its : other.nonces) set_of_[its] = *into;
    set.nonces.insert(set.nonces.end(), other.nonces.begin(), other.nonces.end());
  }
  return *into;
}

void Claims::leave(const std::string& node_key, bool is_end_proven) {
  const auto found = claims_.find(node_key);
  if (found == claims_.end()) return;
  const auto claim = found->second;
  const auto& set = sets_.at(set_of_.at(claim.round.second));
  const bool is_last = set.claimants == 1;
  if (is_last) {
    const auto& newest = *set.rounds.rbegin();
    if (!left_ || left_->first < newest.first) left_ = newest;
    left_->second.ranks.clear();
  }
  withdraw(node_key);
  if (is_last || !is_end_proven) return;
  auto& rounds = sets_.at(set_of_.at(claim.round.second)).rounds;
  const auto round = rounds.find(claim.round);
  const bool is_member = round != rounds.end() && claim.group_rank < round->second.claim.group_world_size;
  if (is_member && round->second.ranks.count(claim.group_rank) == 0) round->second.gone[claim.group_rank] = node_key;
}

// The sets that it has joined stay one.
void Claims::withdraw(const std::string& node_key) {
  const auto found = claims_.find(node_key);
  if (found == claims_.end()) return;
  const auto claim = found->second;
  claims_.erase(found);
  const auto id = set_of_.at(claim.round.second);
  auto& set = sets_.at(id);
  if (claim.is_own) set.has_own = false;
  auto& round = set.rounds.at(claim.round);
  const auto rank = round.ranks.find(claim.group_rank);
  if (rank != round.ranks.end() && --rank->second == 0) round.ranks.erase(rank);
  if (--round.claimants == 0) set.rounds.erase(claim.round);
  if (--set.claimants > 0) return;
  for (const auto& nonce : set.nonces) set_of_.erase(nonce);
  sets_.erase(id);
}

std::optional<Claims::Choice> Claims::choice(std::optional<int> lost) const {
  const ClaimSet* best = nullptr;
  const auto rank = [](const ClaimSet& set) {
    return std::tuple(set.has_own, set.has_nonces, set.claimants, set.rounds.rbegin()->first);
  };
  for (const auto& [id, set] : sets_)
    if (best == nullptr || rank(*best) < rank(set)) best = &set;
  if (best == nullptr && left_) return Choice{left_->second.claim, left_->second.gone, true, false, false};
  if (best == nullptr) return {};
  const auto& round = round_of(*best);
  const bool is_lost_missing =
      lost && *lost < round.claim.group_world_size && round.ranks.count(*lost) == 0 && round.gone.count(*lost) == 0;
  return Choice{round.claim, round.gone, (best->claimants == 1 || !best->has_nonces) && !best->has_own,
                is_greater_part(round), missing(round) == (is_lost_missing ? 1 : 0)};
}

// The newest one, unless it had not begun everywhere, is not that of its greater part, and the greater part of an older
// one is here: it was being begun when the membership before ended.
const Claims::ClaimedRound& Claims::round_of(const ClaimSet& set) {
  const auto& newest = set.rounds.rbegin()->second;
  if (newest.claim.is_established || is_greater_part(newest)) return newest;
  const auto found = std::find_if(set.rounds.rbegin(), set.rounds.rend(),
                                  [](const auto& entry) { return is_greater_part(entry.second); });
  return found == set.rounds.rend() ? newest : found->second;
}

std::size_t Claims::missing(const ClaimedRound& round) {
  return static_cast<std::size_t>(round.claim.group_world_size) - round.ranks.size() - round.gone.size();
}

// As quorum.hpp has it.
bool Claims::is_greater_part(const ClaimedRound& round) {
  const auto here = round.ranks.size();
  if (here != missing(round)) return here > missing(round);
  int rank = 0;
  while (round.gone.count(rank) != 0) ++rank;
  return round.ranks.count(rank) != 0;
}

}  // namespace ddp::rendezvous
