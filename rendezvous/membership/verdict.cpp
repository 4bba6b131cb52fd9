#include "rendezvous/membership/verdict.hpp"

#include "rendezvous/membership/limits.hpp"
#include "rendezvous/membership/membership_words.hpp"
#include "rendezvous/membership/outcome.hpp"
#include "rendezvous/membership/round_end.hpp"

namespace ddp::rendezvous {
namespace {

// A job whose time is over ends with an error, a job that was told to stop does not.
Outcome outcome_of(const JobStop& stop, FinishJob& verdict) {
  if (!stop.time_limit) return outcome::StoppedBySignal{stop.signal_number};
  verdict.what = stopped_by_text(stop.why(), false);
  verdict.try_this = kTimeLimitAdvice;
  return outcome::TimeIsOver{};
}

// The failures beside the cause: first the one that was seen first, so that it is told however many there are.
void tell_others(const std::vector<FailureReport>& failures, std::size_t cause, FinishJob& verdict) {
  const auto tell = [&](const FailureReport& failure) {
    if (verdict.consequences.size() == kFailuresMax) return;
    verdict.consequences.push_back(failure);
    verdict.consequences.back().stderr_tail.clear();  // the message stays bounded
  };
  const auto seen_first = seen_before(failures, cause);
  if (seen_first) tell(failures[*seen_first]);
  if (seen_first) verdict.seen_first = failures[*seen_first].rank;
  for (std::size_t i = 0; i < failures.size(); ++i)
    if (i != cause && i != seen_first) tell(failures[i]);
}

// What is said of the last round, and the outcome that follows from it alone.
Outcome explain(const VerdictFacts& facts, FinishJob& verdict) {
  const auto& round = facts.round;
  const auto* first = cause_of(round);
  const bool has_failed = round.loss || first != nullptr;
  // That a restart would have followed explains nothing where a step was agreed, after which none does.
  if (facts.stop && (!has_failed || (facts.is_another_due && !round.agreement.call()))) {
    if (facts.stop->source == JobStop::Source::workers) verdict.what = facts.stop->why();
    return outcome_of(*facts.stop, verdict);
  }
  // The others are out of reach of a node that was told to stop, and has.
  if (facts.stop && first == nullptr && round.loss && !round.agreement.call()) {
    verdict.what = round.loss->what;
    return outcome_of(*facts.stop, verdict);
  }
  if (first != nullptr) {
    const auto cause = static_cast<std::size_t>(first - round.failures.data());
    verdict.cause = *first;
    verdict.is_cause_certain = is_certain(round.failures, cause);
    tell_others(round.failures, cause, verdict);
    return outcome::WorkerFailed{first->ending};
  }
  if (round.loss) {
    verdict.what = round.loss->what;
    verdict.try_this = round.loss->link == Loss::Link::none ? kLossAdvice : kLinkAdvice;
    if (round.loss->exit_code) return outcome::Told{*round.loss->exit_code};
    return outcome::NotTogether{};
  }
  if (round.tree_survived) {
    verdict.what = survivors_text(round.change);
    verdict.try_this = kSurvivorsAdvice;
    return outcome::Unexplained{};
  }
  if (round.stopped == 0) return outcome::Success{};
  // No success, whatever a node says of itself.
  verdict.what = unexplained_stop_text(round.stop.why);
  verdict.try_this = kUnexplainedStopAdvice;
  return outcome::Unexplained{};
}

}  // namespace

bool has_stopped_at_step(const CurrentRound& round) {
  return (round.agreement.call() || round.stopped_at_step != 0) && round.failures.empty() && round.stopped == 0 &&
         !round.tree_survived && !round.loss;
}

FinishJob verdict_of_round(const VerdictFacts& facts) {
  FinishJob verdict;
  verdict.restarts_max = facts.restarts_max;
  verdict.world_size = facts.world_size;
  if (has_stopped_at_step(facts.round)) {
    const int workers = facts.round.stopped_at_step;
    if (workers == 0) return verdict;  // they had come to the end of their work before
    verdict.exit_code = exit_code_of(outcome::StoppedAtStep{});
    verdict.what = stopped_at_step_text(workers);
    return verdict;
  }
  verdict.stopped = facts.round.stopped;
  auto outcome = explain(facts, verdict);
  if (!facts.stop && facts.is_another_due) {
    outcome = outcome::NoProgress{};
    verdict.what = no_progress_text(verdict.what, CrashLoop::kFailures);
  }
  verdict.exit_code = exit_code_of(outcome);
  return verdict;
}

FinishJob verdict_of_wait(const MembershipOptions& options, int count, const std::string& names,
                          const std::optional<std::string>& reason) {
  FinishJob verdict;
  verdict.exit_code = exit_code_of(outcome::NotTogether{});
  verdict.restarts_max = options.restarts_max;
  verdict.what = too_few_came_text(options, count, names, reason);
  verdict.try_this = kTooFewCameAdvice;
  return verdict;
}

FinishJob verdict_of_split(const MembershipOptions& options, const std::string& why_too_few) {
  FinishJob verdict;
  verdict.exit_code = exit_code_of(outcome::NotTogether{});
  verdict.restarts_max = options.restarts_max;
  verdict.what = none_came_back_text(why_too_few, options.join_timeout);
  verdict.try_this = kTryTogether;
  return verdict;
}

FinishJob verdict_of_stop(const JobStop& stop, int restarts_max) {
  FinishJob verdict;
  verdict.exit_code = exit_code_of(outcome_of(stop, verdict));
  verdict.restarts_max = restarts_max;
  return verdict;
}

}  // namespace ddp::rendezvous
