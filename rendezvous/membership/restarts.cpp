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

// Before its workers came any further. A kill by a person may not repeat itself.
bool has_failed_at_once(const Restarts::RoundEnd& end) {
  const auto* cause = cause_of(end.round);
  return end.has_begun && !end.is_change_of_members && cause != nullptr && cause->after < RestartPause::kAtOnce &&
         end.round.nodes_stepped == 0 && !end.round.kept.commits.value_or(0) &&
         !end.round.kept.checkpoint_step.value_or(0) &&
         !(cause->ending.kind == Ending::Kind::killed && cause->ending.value == SIGKILL &&
           cause->ending.out_of_memory != true);
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
  if (crash_loop_.end_round(round.kept, has_failed && !end.is_change_of_members && end.has_begun)) budget_.refill();
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
  pause_.end_round(has_failed_at_once(end));
  if (const auto place = place_to_blame(round, is_change)) cool_down_.blame(*place, now);
}

}  // namespace ddp::rendezvous
