#include "rendezvous/membership/restarts.hpp"

#include <csignal>

#include "rendezvous/membership/round_end.hpp"

namespace ddp::rendezvous {
namespace {

// No further round can mend this one.
bool is_last(const CurrentRound& round) {
  const auto* cause = cause_of(round);
  return round.tree_survived || (cause != nullptr && is_hopeless(*cause));
}

// Before its workers came any further.
RestartPause::AtOnce at_once(const Restarts::RoundEnd& end) {
  using AtOnce = RestartPause::AtOnce;
  const auto& round = end.round;
  const bool has_come_further =
      round.nodes_stepped != 0 || round.kept.commits.value_or(0) || round.kept.checkpoint_step.value_or(0);
  if (end.is_change_of_members || has_come_further) return AtOnce::no;
  const bool is_loss_at_once = round.began_at ? round.loss && round.loss->at - *round.began_at < RestartPause::kAtOnce
                                              : round.loss && !end.has_begun;
  if (is_loss_at_once) return AtOnce::node_lost;
  const auto* cause = cause_of(round);
  if (!end.has_begun || cause == nullptr || cause->after >= RestartPause::kAtOnce) return AtOnce::no;
  const auto& ending = cause->ending;
  const bool is_kill_by_others = ending.kind == Ending::Kind::killed && ending.value == SIGKILL &&
                                 ending.out_of_memory != true && !cause->is_killed_by_ddprun();
  return is_kill_by_others ? AtOnce::worker_killed : AtOnce::worker_failed;
}

}  // namespace

bool Restarts::may_follow(const CurrentRound& round, bool are_enough_left, TimePoint now) {
  if (is_last(round)) return false;
  const bool is_change = (round.change && cause_of(round) == nullptr) || (round.loss && are_enough_left);
  return is_change || budget_.is_left(now);
}

bool Restarts::end(const RoundEnd& end, TimePoint now) {
  const auto& round = end.round;
  const bool has_failed = round.loss || cause_of(round) != nullptr;
  const bool is_lost = round.loss && round.loss->link != Loss::Link::ends_round;  // nobody is lost by a broken link
  const bool has_worker_failed = has_failed && !is_lost && !end.is_change_of_members && end.has_begun;
  if (crash_loop_.end_round(round.kept, has_worker_failed)) budget_.refill();
  if (is_last(round)) return false;
  return end.is_change_of_members || (has_failed && budget_.is_left(now));
}

void Restarts::go_on(const RoundEnd& end, TimePoint now) {
  const auto& round = end.round;
  const bool is_change = end.is_change_of_members;
  if (end.has_begun)
    reasons_ = {why_ended(round, is_change)};
  else
    reasons_.unstarted = why_ended(round, is_change);
  if (!is_change) budget_.spend(now);
  pause_.end_round(at_once(end));
  if (const auto place = place_to_blame(round, is_change)) cool_down_.blame(*place, now);
}

}  // namespace ddp::rendezvous
