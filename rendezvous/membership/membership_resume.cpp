// Membership: nodes that come again, and rounds that another membership began.
#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/membership/membership.hpp"
#include "rendezvous/membership/membership_words.hpp"

namespace ddp::rendezvous {
namespace {

// Of a node that comes again: its settings are those that it was let in with.
Hello renewed(Hello before, const Hello& again) {
  before.held = again.held;
  before.standby_port = again.standby_port;
  before.holds_endpoint = again.holds_endpoint;
  before.local_address = again.local_address;
  before.addresses = again.addresses;
  return before;
}

}  // namespace

// --- the same node on another connection ---

void Membership::come_again(NodeId before, const Joined& event, TimePoint now) {
  if (before != event.node) {
    if (!nodes_.end_absence(before)) out_.emplace_back(Drop{before});
    nodes_.rename(before, event.node);
  }
  auto& node = nodes_.at(event.node);
  node.hello = renewed(node.hello, event.hello);
  if (node.hello.held && !admission().is_possible(node.hello)) node.hello.held.reset();
  node.seen_address = event.seen_address;
  node.stop.says_again = node.stop.asked.has_value();
  if (phase_ == Phase::finished) {
    if (verdict_) send_verdict(event.node, is_report_for(node));
    return;
  }
  const auto& held = node.hello.held;
  const bool is_claimant = held && !held->is_left_behind && !nodes_.older_round(event.node) &&
                           (rounds_begun_ == 0 || last_round() < held->round);
  if (std::exchange(node.is_claimant, false) && !is_claimant) recovery_.withdraw(node.hello.node_key);
  if (is_claimant)
    take_in_with_round(event.node, Held(*held), now);
  else
    tell_again(event.node, node);
  if (recovery_.are_claims_open()) decide_claims(now);
  end_round_if_all_have(now);
  go_on(now);
}

// What it has not answered may not have reached it, and what it said may not have reached this membership: it says that
// again.
void Membership::tell_again(NodeId id, Node& node) {
  const auto& held = node.hello.held;
  if (const auto older = nodes_.older_round(id)) {
    if (held && held->round.number == *older) return end_older_round(id, *older, !(last_round() < held->round));
    return nodes_.end_older_round(id);
  }
  if (!node.links_to_check.empty()) send(id, CheckLinks{node.links_to_check});
  if (!node.is_member()) return;
  const bool has_round = held && held->round == last_round();
  if (has_round && !held->is_established && quorum_.is_established()) send(id, RoundEstablished{held->round.number});
  if (phase_ == Phase::opening_store && node.group_rank == 0) return ask_for_store();
  if (node.part->has_ended) return;
  if (phase_ == Phase::running && !has_round && node.part->told) return send(id, *node.part->told);
  if (phase_ == Phase::running && round_.agreement.has_begun()) return tell_of_stop(id, node);
  if (phase_ != Phase::stopping) return;
  if (has_round) return send(id, round_.stop);
  node.part->has_ended = true;  // it has not begun the round, and is not told to any more
}

// --- a round that this membership did not begin ---

void Membership::take_in_with_round(NodeId id, const Held& held, TimePoint now) {
  const auto& last = options_.before.last_round;
  const bool is_left_behind = held.is_left_behind || held.round < last;
  // The job that was given up here before goes on with one of its nodes.
  if (!(last < held.round)) restarts_.restate(options_.before.restart_count, options_.before.spent_restarts, now);
  if (is_left_behind) return end_older_round(id, held.round.number, !(last_round() < held.round));
  if (rounds_begun_ == 0) return claim(id, held, now);
  if (held.round < last_round()) return end_older_round(id, held.round.number, true);
  if (held.round != last_round() || !recovery_.proves_last_round(held.nonces))
    return take_claim_of_another_round(id, held, now);
  if (recovery_.awaits(held.group_rank) && (phase_ == Phase::running || phase_ == Phase::stopping))
    return seat(id, held, now);
  quorum_.seat(held.group_rank, nodes_.at(id).hello.node_key);
  end_older_round(id, held.round.number, true);
}

// Nothing here knows a round. A first one whose store is being opened is not begun.
void Membership::claim(NodeId id, const Held& held, TimePoint now) {
  if (phase_ == Phase::opening_store) {
    nodes_.forget_round();
    round_ = {round_.id};  // its number is not used again
    recovery_.reset_wait();
    phase_ = Phase::gathering;
    gathering_.end_last_call();
    deadline_ = gathering_.ends();
  }
  auto& node = nodes_.at(id);
  node.is_claimant = true;
  recovery_.claim(node.hello.node_key, held, node.is_endpoint_host, now);
  decide_claims(now);
}

void Membership::decide_claims(TimePoint now) {
  const auto decision = recovery_.decision(now);
  if (!decision) return;
  if (const auto& choice = decision->choice) {
    if (admission().follows_claims()) take_settings_of(choice->claim);
    adopt(choice->claim, now);
    for (const auto& [rank, node_key] : choice->gone) settle_end(rank, node_key, now);
  }
  close_claims(now);
}

void Membership::take_settings_of(const Held& claim) {
  const auto has_made_it = [&](const auto& entry) {
    return entry.second.is_claimant && entry.second.hello.held->round == claim.round &&
           entry.second.hello.held->nonces == claim.nonces;
  };
  const auto found = std::find_if(nodes_.begin(), nodes_.end(), has_made_it);
  if (found == nodes_.end()) return;  // it has left
  const auto& hello = found->second.hello;
  take_settings(options_, hello);
  restarts_.set_limits(hello.restarts_max, hello.restart_window);
}

void Membership::close_claims(TimePoint now) {
  recovery_.close_claims();
  std::vector<NodeId> claimants, talkers, others;
  std::size_t members = 0;
  for (auto& [id, node] : nodes_) {
    if (const auto refused = admission().objection(node.hello); refused && recovery_.is_adopted()) {
      send(id, *refused);
      others.push_back(id);
    }
    if (std::exchange(node.is_claimant, false)) {
      claimants.push_back(id);
      // First, so that the others are measured by how many of them are here.
      if (node.hello.held->round == last_round()) std::swap(claimants[members++], claimants.back());
    }
    if (!node.said.empty()) talkers.push_back(id);
  }
  for (const auto id : others) forget(id);
  for (const auto id : claimants)
    if (phase_ != Phase::finished && nodes_.has(id)) take_in_with_round(id, Held(*nodes_.at(id).hello.held), now);
  for (const auto id : talkers) {
    if (!nodes_.has(id)) continue;
    for (const auto& message : nodes_.at(id).said.take())
      if (nodes_.has(id)) take(Heard{id, message}, now);
  }
  go_on(now);
}

// No claim ends a round whose greater part is here. One of a node that was a member of a round here may be true where
// its greater part is elsewhere. Any other one is refused.
void Membership::take_claim_of_another_round(NodeId id, const Held& held, TimePoint now) {
  auto& node = nodes_.at(id);
  quorum_.leave(node.hello.node_key, false);  // where it is a member, it is elsewhere
  const bool is_borne_out = last_round() < held.round && recovery_.proves_any_round(held);
  if (is_borne_out && !quorum_.is_greater_part_here()) {
    if (!recovery_.is_adopted()) return step_down(newer_round_text(held.round.number, node.hello.host_name));
    quorum_.come(node.hello.node_key);
    adopt(held, now);
    return seat(id, held, now);
  }
  const auto place = place_text(node.hello.host_name, node.seen_address);
  if (auto text = recovery_.tell_claim(place, held.round.number, now)) print(*std::move(text));
  if (node.is_endpoint_host) return step_down(lone_round_text(held.round.number));
  // Nobody else has workers of any round between two rounds.
  if ((is_borne_out || phase_ == Phase::gathering) && !own_absence_.is_in_doubt(now) && !node.is_member()) {
    quorum_.come(node.hello.node_key);
    return end_older_round(id, held.round.number, is_borne_out);
  }
  send(id, refusal_of_round(node.hello.host_name, held));
  if (node.is_member()) return take(Left{id, has_other_round_text(held.round.number)}, now);
  forget(id);
}

// Where this process knew an older round, the rank may be that of a node that is here.
std::optional<int> Membership::lost_member_of(const RoundId& round) const {
  const auto lost = options_.lost.group_rank;
  const bool is_here = lost && std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
                         const auto& held = entry.second.hello.held;
                         return held && held->round == round && held->group_rank == *lost;
                       });
  return is_here ? std::nullopt : lost;
}

void Membership::adopt(const Held& held, TimePoint now) {
  for (const auto& [id, node] : nodes_)
    if (node.runs()) end_older_round(id, round_.id->number, true);
  nodes_.forget_round();  // a member of this one may have a group rank of the older one
  round_ = {held.round};
  last_begun_ = held.round;
  deadline_.reset();
  phase_ = Phase::running;
  rounds_begun_ = 1;
  newcomers_.round_begins(now);
  world_size_ = 0;
  round_.nodes = held.group_world_size;
  options_.term.term = std::max(options_.term.term, held.round.term + 1);
  recovery_.adopt(held, options_.before.last_round == held.round, now);
  is_endpoint_ours_ = !options_.endpoint_address.empty() && held.endpoint_address == options_.endpoint_address;
  restarts_.restate(held.restart_count, held.spent_restarts, now);
  const auto lost = lost_member_of(held.round);
  if (!nodes_.leaving().empty()) round_.change = {kNodesLeave, job_time(now)};
  quorum_.adopt(held.group_world_size, lost);
  note_end_of_lost_host();
  if (lost && recovery_.settle(*lost)) {
    if (options_.lost.has_left)
      round_.change = {endpoint_has_left_text(*lost), {}, true};
    else
      round_.loss = {
          lost_endpoint_text(*lost, options_.lost.why), job_time(now), {}, {}, options_.lost.exit_code, true};
  }
  print(adopted_text(round_.number(), held.group_world_size, round_.loss));
}

// Its node key has no part in the round otherwise, as it never comes here.
void Membership::note_end_of_lost_host() {
  const auto lost = recovery_.is_adopted() ? lost_member_of(last_round()) : std::nullopt;
  if (!lost || !options_.lost.is_end_proven) return;
  quorum_.end(*lost, options_.lost.node_key);
}

// Its guardian may be heard after the loss was noted.
void Membership::explain_loss_of_host(int signal_number) {
  auto& host = options_.lost;
  if (host.why) return;  // it said so itself
  host.why = ddprun_ended_text(signal_number);
  host.exit_code = exit_code_of_killed(signal_number);
  const auto lost = recovery_.is_adopted() ? lost_member_of(last_round()) : std::nullopt;
  if (!lost || !round_.loss || !round_.loss->is_of_endpoint_host) return;
  round_.loss->what = lost_endpoint_text(*lost, host.why);
  round_.loss->exit_code = host.exit_code;
}

void Membership::seat(NodeId id, const Held& held, TimePoint now) {
  auto& node = nodes_.at(id);
  nodes_.make_member(id, held.group_rank, {});
  node.first_round = 0;
  recovery_.settle(held.group_rank);
  world_size_ += node.hello.workers;
  restarts_.restate(held.restart_count, held.spent_restarts, now);
  if (held.stop_call) round_.agreement.was_told(*held.stop_call);
  quorum_.seat(held.group_rank, node.hello.node_key);
  if (held.is_established) quorum_.establish();
  if (phase_ == Phase::stopping) send(id, round_.stop);
  consider_losses(now);
}

// A node that was cut off, while the others went on, ends the round that it still has before it takes part again.
// may_reseat: its round is of this job, so that the newest state is the right one whoever has it.
void Membership::end_older_round(NodeId id, std::uint32_t round, bool may_reseat) {
  auto& node = nodes_.at(id);
  const auto& held = node.hello.held;
  const bool is_proven = may_reseat && held && !held->is_left_behind && recovery_.proves_any_round(*held);
  node.has_older_work = node.has_older_work || is_proven;  // it may come again after it was told
  nodes_.set_older_round(id, round);
  send(id, went_on_without(round, may_reseat && !job_stop()));
}

// Whoever else is left has no restart either for the wait for another node.
bool Membership::is_job_over(TimePoint now) {
  return nodes_.count_available() < options_.nodes_min && quorum_.silent_count() < options_.nodes_min &&
         !restarts_.may_follow(round_, false, now);
}

void Membership::give_up_awaited(TimePoint now) {
  const auto nodes = recovery_.give_up();
  note_loss(did_not_come_text(round_.loss, nodes, recovery_.timeout()), now, now);
  consider_losses(now);
}

// The workers here are left alone until it is known that others go on with them.
void Membership::consider_losses(TimePoint now) {
  if (recovery_.is_over_now()) {
    book_.begun(last_round().number, kBegunElsewhere, round_.nodes, world_size_, now);
    book_.all_started(now);
    if ((stops_.is_warned() || job_stop()) && !round_.loss && phase_ == Phase::running) ask_for_a_step(now);
  }
  if (round_.change && !job_stop() && !recovery_.awaits_anyone() && phase_ == Phase::running) {
    if (must_step_down()) return step_down(why_too_few());
    stop_round(SIGTERM, false, round_.change->who, now);
  }
  if (round_.loss && !job_stop()) {
    const bool may = may_go_on();
    const bool is_decided = may || !recovery_.awaits_anyone();
    if (is_decided && must_step_down() && !is_job_over(now)) return step_down(why_too_few());
    if (!may && guardian_awaited_until_) return;
    if (is_decided && phase_ == Phase::running) stop_round(SIGTERM, false, round_.loss->what, now);
  }
  if (round_.loss && job_stop() && !recovery_.awaits_anyone() && phase_ == Phase::running)
    return give_up_agreement(now);
  end_round_if_all_have(now);
}

}  // namespace ddp::rendezvous
