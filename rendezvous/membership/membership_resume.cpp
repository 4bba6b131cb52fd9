// Membership: nodes that come again, and rounds that another membership began.
#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/membership/membership.hpp"

namespace ddp::rendezvous {

std::optional<NodeId> Membership::find(const std::string& node_key) const {
  const auto found = node_key.empty() ? nodes_by_key_.end() : nodes_by_key_.find(node_key);
  if (found == nodes_by_key_.end()) return {};
  return found->second;
}

// --- the same node on another connection ---

void Membership::come_again(NodeId before, const Joined& event, TimePoint now) {
  if (before != event.node) {
    if (absences_.erase(before) == 0) out_.emplace_back(std::in_place_type<Drop>, before);
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
  node.hello = event.hello;
  node.seen_address = event.seen_address;
  node.says_stop_again = node.stop_asked.has_value();
  if (phase_ == Phase::finished) {
    if (verdict_) send_verdict(event.node, is_report_for(node));
    return;
  }
  if (const auto& held = node.hello.held; held && rounds_begun_ > 0 && round_id_ < held->round && !held->is_left_behind)
    take_in_with_round(event.node, *held, now);
  else
    tell_again(event.node, node);
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
  if (held.round < options_.newest_before) budget_.restate(held.restart_count, now);
  if (held.is_left_behind || held.round < options_.newest_before) return end_older_round(id, held.round.number);
  if (rounds_begun_ == 0 || (is_adopted_ && round_id_ < held.round)) adopt(held, now);
  if (round_id_ < held.round)
    return step_down("a newer round of the job, " + std::to_string(held.round.number) +
                     ", has begun elsewhere, and host " + nodes_.at(id).hello.host_name + " had a part in it");
  const bool is_its_place = held.round == round_id_ && awaited_.count(held.group_rank) != 0 &&
                            (phase_ == Phase::running || phase_ == Phase::stopping);
  if (is_its_place) return seat(id, held, now);
  if (held.round == round_id_) quorum_.seat(held.group_rank, nodes_.at(id).hello.node_key);
  end_older_round(id, held.round.number);
}

void Membership::adopt(const Held& held, TimePoint now) {
  for (auto& [id, node] : nodes_) {
    if (node.is_member && !node.has_ended) end_older_round(id, static_cast<std::uint32_t>(round_));
    node.is_member = false;
    node.group_rank.reset();  // that of an older round: a member of this one may have it
  }
  forget_round();
  deadline_.reset();
  phase_ = Phase::running;
  is_adopted_ = true;
  was_given_up_ = false;
  rounds_begun_ = 1;
  round_id_ = held.round;
  round_ = held.round.number;
  round_began_ = now;
  world_size_ = 0;
  nodes_in_round_ = held.group_world_size;
  options_.term.term = std::max(options_.term.term, held.round.term + 1);
  for (int rank = 0; rank < held.group_world_size; ++rank) awaited_.insert(rank);
  quorum_.adopt(held.group_world_size, options_.lost_group_rank);
  if (options_.lost_group_rank && awaited_.erase(*options_.lost_group_rank) != 0) {
    lost_node_ = "node " + std::to_string(*options_.lost_group_rank) + ", which had the endpoint, was lost";
    lost_at_ = job_time(now);
  }
  restate_ends_ = now + restate_timeout();
  say("the job is in round " + std::to_string(round_) + " of " + counted(held.group_world_size, "node") +
      ", which go on" + (lost_node_.empty() ? "" : "; " + lost_node_));
}

void Membership::seat(NodeId id, const Held& held, TimePoint now) {
  auto& node = nodes_.at(id);
  node.group_rank = held.group_rank;
  node.is_member = true;
  node.has_ended = node.has_stepped = node.takes_part = false;
  node.stop_call.reset();
  node.first_round = 0;
  awaited_.erase(held.group_rank);
  world_size_ += node.hello.workers;
  budget_.restate(held.restart_count, now);
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
  for (const int rank : awaited_) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
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
