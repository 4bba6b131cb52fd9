// Membership: nodes that come again, and rounds that another membership began.
#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/membership/membership.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kClaimsSaidEach = 1min;
constexpr std::size_t kRanksShown = 8;

// Of a node that comes again: its settings are those that it was let in with.
Hello renewed(Hello before, const Hello& again) {
  before.held = again.held;
  before.standby_port = again.standby_port;
  before.local_address = again.local_address;
  before.addresses = again.addresses;
  return before;
}

}  // namespace

std::optional<NodeId> Membership::find(const std::string& node_key) const {
  const auto found = node_key.empty() ? nodes_by_key_.end() : nodes_by_key_.find(node_key);
  if (found == nodes_by_key_.end()) return {};
  return found->second;
}

// --- the same node on another connection ---

void Membership::come_again(NodeId before, const Joined& event, TimePoint now) {
  if (before != event.node) {
    if (!end_absence(before)) out_.emplace_back(Drop{before});
    auto entry = nodes_.extract(before);
    entry.key() = event.node;
    nodes_.insert(std::move(entry));
    if (auto older = older_rounds_.extract(before); !older.empty()) {
      older.key() = event.node;
      older_rounds_.insert(std::move(older));
    }
    nodes_by_key_[event.hello.node_key] = event.node;
  }
  auto& node = nodes_.at(event.node);
  node.hello = renewed(node.hello, event.hello);
  if (node.hello.held && !is_possible(node.hello)) node.hello.held.reset();
  node.seen_address = event.seen_address;
  node.says_stop_again = node.stop_asked.has_value();
  if (phase_ == Phase::finished) {
    if (verdict_) send_verdict(event.node, is_report_for(node));
    return;
  }
  const auto& held = node.hello.held;
  const bool is_claimant = held && !held->is_left_behind && older_rounds_.count(event.node) == 0 &&
                           (rounds_begun_ == 0 || round_id_ < held->round);
  if (std::exchange(node.is_claimant, false) && !is_claimant) claims_.withdraw(node.hello.node_key);
  if (is_claimant)
    take_in_with_round(event.node, Held(*held), now);
  else
    tell_again(event.node, node);
  if (are_claims_open()) decide_claims(now);
  end_round_if_all_have(now);
  go_on(now);
}

// What it has not answered may not have reached it, and what it said may not have reached this membership: it says that
// again.
void Membership::tell_again(NodeId id, Node& node) {
  const auto& held = node.hello.held;
  if (const auto older = older_rounds_.find(id); older != older_rounds_.end()) {
    if (held && held->round.number == older->second) return end_older_round(id, older->second);
    older_rounds_.erase(older);
    return;
  }
  if (!node.is_member) return;
  const bool has_round = held && held->round == round_id_;
  if (has_round && !held->is_established && quorum_.is_established()) send(id, RoundEstablished{held->round.number});
  if (phase_ == Phase::opening_store && node.group_rank == 0) return ask_for_store(members());
  if (node.has_ended) return;
  if (phase_ == Phase::running && !has_round && node.told) return send(id, *node.told);
  if (phase_ == Phase::running && is_step_wanted_) return tell_of_stop(id, node);
  if (phase_ != Phase::stopping) return;
  if (has_round) return send(id, stop_);
  node.has_ended = true;  // it has not begun the round, and is not told to any more
}

// --- a round that this membership did not begin ---

void Membership::take_in_with_round(NodeId id, const Held& held, TimePoint now) {
  const auto& last = options_.before.last_round;
  const bool is_left_behind = held.is_left_behind || held.round < last;
  if (is_left_behind && !(last < held.round)) budget_.restate(options_.before.restart_count, now);
  if (is_left_behind) return end_older_round(id, held.round.number);
  if (rounds_begun_ == 0) return claim(id, held, now);
  if (held.round < round_id_) return end_older_round(id, held.round.number);
  const auto nonce_of = [](const auto& nonces) { return nonces.empty() ? std::string() : nonces.front(); };
  const bool has_nonce = nonce_of(held.nonces) == nonce_of(nonces_);  // of none, if an older membership began the round
  if (held.round != round_id_ || !has_nonce) return take_claim_of_another_round(id, held, now);
  if (awaited_.has(held.group_rank) && (phase_ == Phase::running || phase_ == Phase::stopping))
    return seat(id, held, now);
  quorum_.seat(held.group_rank, nodes_.at(id).hello.node_key);
  end_older_round(id, held.round.number);
}

// Nothing here knows a round. A first one whose store is being opened is not begun.
void Membership::claim(NodeId id, const Held& held, TimePoint now) {
  if (phase_ == Phase::opening_store) {
    for (auto& [other, node] : nodes_) {
      node.is_member = false;
      node.group_rank.reset();
    }
    member_count_ = 0;
    forget_round();
    phase_ = Phase::gathering;
    deadline_ = gathering_ends_;
  }
  auto& node = nodes_.at(id);
  node.is_claimant = true;
  claims_.add(node.hello.node_key, held, node.is_endpoint_host);
  if (!restate_ends_) restate_ends_ = now + restate_timeout();
  decide_claims(now);
}

// An agent says all of it again on another connection.
void Membership::hold_back(Node& node, const ToMembership& message) {
  const auto* stop = std::get_if<StopAsked>(&message);
  if (stop == nullptr || !stop->is_warning || node.said.count(message.index()) == 0)
    node.said.insert_or_assign(message.index(), message);
}

// At once where the greater part of a round's members claim it, or all that can, and two of them bear each other out.
// A single node may be a liar: it is believed where nobody else has come meanwhile.
void Membership::decide_claims(TimePoint now) {
  const auto choice = claims_.choice(options_.lost_group_rank);
  if (!choice) return close_claims(now);
  const bool is_clear = (choice->is_greater_part || choice->is_whole) && !choice->is_lone;
  if (!is_clear && now < *restate_ends_) return;
  if (follows_claims()) take_settings_of(choice->claim, now);
  adopt(choice->claim, now);
  for (const auto& [rank, node_key] : choice->gone) {
    if (!awaited_.erase(rank)) continue;
    quorum_.seat(rank, node_key);
    quorum_.leave(node_key, true);
    has_member_left_ = true;
    note_loss("node " + std::to_string(rank) + " was lost meanwhile", now, now);
  }
  close_claims(now);
}

void Membership::take_settings_of(const Held& claim, TimePoint now) {
  const auto has_made_it = [&](const auto& entry) {
    return entry.second.is_claimant && entry.second.hello.held->round == claim.round &&
           entry.second.hello.held->nonces == claim.nonces;
  };
  const auto found = std::find_if(nodes_.begin(), nodes_.end(), has_made_it);
  if (found == nodes_.end()) return;  // it has left
  const auto& hello = found->second.hello;
  options_.nodes_min = hello.nodes_min;
  options_.nodes_max = hello.nodes_max;
  options_.join_timeout = hello.join_timeout;
  options_.last_call_timeout = hello.last_call_timeout;
  options_.restarts_max = hello.restarts_max;
  const int restart_count = budget_.count();
  budget_ = RestartBudget(options_.restarts_max, hello.restart_window);
  budget_.restate(restart_count, now);
}

void Membership::close_claims(TimePoint now) {
  if (!is_adopted_) restate_ends_.reset();
  claims_ = {};
  std::vector<NodeId> claimants, talkers, others;
  std::size_t members = 0;
  for (auto& [id, node] : nodes_) {
    if (const auto refused = objection(node.hello); refused && is_adopted_) {
      send(id, *refused);
      others.push_back(id);
    }
    if (std::exchange(node.is_claimant, false)) {
      claimants.push_back(id);
      // First, so that the others are measured by how many of them are here.
      if (node.hello.held->round == round_id_) std::swap(claimants[members++], claimants.back());
    }
    if (!node.said.empty()) talkers.push_back(id);
  }
  for (const auto id : others) forget(id);
  for (const auto id : claimants)
    if (phase_ != Phase::finished && nodes_.count(id) != 0)
      take_in_with_round(id, Held(*nodes_.at(id).hello.held), now);
  for (const auto id : talkers) {
    if (nodes_.count(id) == 0) continue;
    for (const auto& [kind, message] : std::exchange(nodes_.at(id).said, {}))
      if (nodes_.count(id) != 0) take(Heard{id, message}, now);
  }
  go_on(now);
}

// No claim ends a round whose greater part is here. One of a node that was a member of a round here may be true where
// its greater part is elsewhere. Any other one is refused.
void Membership::take_claim_of_another_round(NodeId id, const Held& held, TimePoint now) {
  auto& node = nodes_.at(id);
  const auto round = std::to_string(held.round.number);
  quorum_.leave(node.hello.node_key, false);  // where it is a member, it is elsewhere
  const bool is_borne_out =
      round_id_ < held.round && std::any_of(held.nonces.begin(), held.nonces.end(), [&](const std::string& nonce) {
        return std::find(nonces_.begin(), nonces_.end(), nonce) != nonces_.end();
      });
  if (is_borne_out && !quorum_.is_greater_part_here()) {
    if (!is_adopted_)
      return step_down("a newer round of the job, " + round + ", has begun elsewhere, and host " +
                       node.hello.host_name + " had a part in it");
    quorum_.come(node.hello.node_key);
    adopt(held, now);
    return seat(id, held, now);
  }
  name_claimant(node, held, now);
  if (node.is_endpoint_host)
    return step_down("this node has round " + round + " of the job, and nobody else here does");
  const bool is_in_doubt = doubt_ends_ && now < *doubt_ends_;
  // Nobody else has workers of any round between two rounds.
  if ((is_borne_out || phase_ == Phase::gathering) && !is_in_doubt && !node.is_member) {
    quorum_.come(node.hello.node_key);
    return end_older_round(id, held.round.number);
  }
  // It may be true nevertheless, and not be noticed here yet. So the node may come again, or look for the others.
  Refused refused{"the nodes at the endpoint know nothing of round " + round + " of the job, which this node has",
                  "start ddprun again on this host, so that it joins without that round", false, true};
  if (held.nonces.empty()) {
    refused.what += " and cannot prove, as ddprun on host " + node.hello.host_name + " is too old, or the endpoint was";
    refused.try_this = "upgrade ddprun on host " + node.hello.host_name + " and start it again";
  }
  send(id, refused);
  if (node.is_member) return take(Left{id, "it has round " + round + " of others", false}, now);
  forget(id);
}

// Once a minute at most: whoever lies may do so often.
void Membership::name_claimant(const Node& node, const Held& held, TimePoint now) {
  if (now < next_claim_said_) {
    ++claims_unsaid_;
    return;
  }
  next_claim_said_ = now + kClaimsSaidEach;
  print("host " + node.hello.host_name + " (" + node.seen_address + ") says that it has round " +
        std::to_string(held.round.number) + " of the job, of which the nodes here know nothing: that does not count" +
        (claims_unsaid_ == 0
             ? ""
             : "; " + counted(std::exchange(claims_unsaid_, 0), "claim") + " before it did not either"));
}

void Membership::adopt(const Held& held, TimePoint now) {
  const auto restate_ends = are_claims_open() ? *restate_ends_ : now + restate_timeout();
  for (auto& [id, node] : nodes_) {
    if (node.is_member && !node.has_ended) end_older_round(id, static_cast<std::uint32_t>(round_));
    node.is_member = false;
    node.group_rank.reset();  // that of an older round: a member of this one may have it
  }
  member_count_ = 0;
  forget_round();
  deadline_.reset();
  phase_ = Phase::running;
  is_adopted_ = true;
  was_given_up_ = false;
  rounds_begun_ = 1;
  round_id_ = held.round;
  round_ = held.round.number;
  nonces_ = held.nonces;
  round_began_ = now;
  world_size_ = 0;
  nodes_in_round_ = held.group_world_size;
  options_.term.term = std::max(options_.term.term, held.round.term + 1);
  awaited_ = RankSet::below(held.group_world_size);
  quorum_.adopt(held.group_world_size, options_.lost_group_rank);
  if (options_.lost_group_rank && awaited_.erase(*options_.lost_group_rank)) {
    lost_node_ = "node " + std::to_string(*options_.lost_group_rank) + ", which had the endpoint, was lost";
    lost_at_ = job_time(now);
  }
  restate_ends_ = restate_ends;
  print("the job is in round " + std::to_string(round_) + " of " + counted(held.group_world_size, "node") +
        ", which go on" + (lost_node_.empty() ? "" : "; " + lost_node_));
}

void Membership::seat(NodeId id, const Held& held, TimePoint now) {
  auto& node = nodes_.at(id);
  node.group_rank = held.group_rank;
  if (!std::exchange(node.is_member, true)) ++member_count_;
  node.has_ended = node.has_stepped = node.takes_part = false;
  node.stop_call.reset();
  node.first_round = 0;
  awaited_.erase(held.group_rank);
  world_size_ += node.hello.workers;
  budget_.restate(held.restart_count, now);
  if (held.stop_call) calls_told_before_.insert(*held.stop_call);
  quorum_.seat(held.group_rank, node.hello.node_key);
  if (held.is_established) quorum_.establish();
  if (phase_ == Phase::stopping) send(id, stop_);
  consider_losses(now);
}

// A node that was cut off, while the others went on, ends the workers that it still has before it takes part again.
void Membership::end_older_round(NodeId id, std::uint32_t round) {
  older_rounds_[id] = round;
  send(id, StopRound{round, SIGTERM, false, false, "the other nodes have gone on without this one", {}, true});
}

void Membership::give_up_awaited(TimePoint now) {
  std::string ranks;
  for (const int rank : awaited_.lowest(kRanksShown)) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  if (awaited_.size() > kRanksShown) ranks += " and " + std::to_string(awaited_.size() - kRanksShown) + " more";
  note_loss((lost_node_.empty() ? "" : lost_node_ + "; ") + (awaited_.size() == 1 ? "node " : "nodes ") + ranks +
                " did not come within " + describe_duration(restate_timeout()) + " after the endpoint was lost",
            now, now);
  was_given_up_ = true;
  awaited_.clear();
  consider_losses(now);
}

// The workers here are left alone until it is known that others go on with them.
void Membership::consider_losses(TimePoint now) {
  if (awaited_.empty() && restate_ends_) {
    restate_ends_.reset();
    book_.begun(round_id_.number, "another membership began it", nodes_in_round_, world_size_, now);
    book_.all_started(now);
    if ((is_warned_ || stop_signal_ != 0) && lost_node_.empty() && phase_ == Phase::running) ask_for_a_step(now);
  }
  if (!lost_node_.empty() && stop_signal_ == 0) {
    const bool may = may_go_on();
    if (!may && awaited_.empty()) return step_down(why_too_few());
    if (may && phase_ == Phase::running) stop_round(SIGTERM, false, lost_node_, now);
  }
  if (!lost_node_.empty() && stop_signal_ != 0 && awaited_.empty() && phase_ == Phase::running)
    return give_up_agreement(now);
  end_round_if_all_have(now);
}

}  // namespace ddp::rendezvous
