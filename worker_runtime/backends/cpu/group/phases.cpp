#include "worker_runtime/backends/cpu/group/phases.hpp"

#include "worker_runtime/core/failure/judge.hpp"

namespace ddp::cpu_backend {

using core::Cause;
using core::Failure;

void throw_unusable(const core::GroupStatus& status) {
  if (status.has_failed()) status.throw_unusable();
  core::throw_unusable({});
}

void Phases::meet(base::Deadline& deadline) {
  arrive(deadline);
  const Outcome outcome = parts_.arrivals.wait(deadline);
  if (outcome.kind != Outcome::Kind::complete) fail(outcome, deadline);
}

void Phases::meet_after_leaders(base::Deadline& deadline) {
  arrive(deadline);
  const Outcome outcome = parts_.arrivals.wait_for_leader(deadline);
  if (outcome.kind != Outcome::Kind::complete) fail(outcome, deadline);
}

void Phases::arrive(const base::Deadline& deadline) {
  if (const auto outcome = parts_.arrivals.gave_up_ahead()) {
    if (parts_.states.all_have(Presence::gave_up, outcome->ranks)) parts_.call.refuse_unless_joined();
    fail(*outcome, deadline);
  }
  parts_.call.join();
  parts_.arrivals.arrive();
  parts_.call.record_late();
}

void Phases::fail(const Outcome& outcome, const base::Deadline& deadline) {
  const RankStates& states = parts_.states;
  parts_.call.set_aborted_elsewhere(outcome.kind == Outcome::Kind::lost &&
                                    states.all_have(Presence::aborted, outcome.ranks));
  parts_.news.tell(outcome);
  switch (outcome.kind) {
    case Outcome::Kind::lost:
      parts_.arrivals.presence().give_up_for(outcome.ranks.front());
      core::throw_verdict(core::judge(parts_.members.failed_group(), states.failure_in_present_call(Cause::ranks_lost),
                                      states.reports_of(outcome.ranks)));
    case Outcome::Kind::timed_out: fail_by_timeout(outcome.ranks, deadline);
    case Outcome::Kind::interrupted:
    case Outcome::Kind::complete: break;
  }
  throw_unusable(parts_.status);
}

void Phases::fail_without(int index, const base::Deadline& deadline) {
  const auto ahead = parts_.arrivals.gave_up_ahead();
  fail(ahead ? *ahead : parts_.arrivals.failure_without(index), deadline);
}

void Phases::fail_by_timeout(std::span<const int> missing, const base::Deadline& deadline) const {
  Failure failure = parts_.states.failure_in_present_call(Cause::timed_out);
  failure.limit = deadline.full_time();
  core::throw_verdict(core::judge(parts_.members.failed_group(), failure, parts_.states.reports_of(missing)));
}

void Phases::fail_by_mismatch(const std::string& what) const {
  Failure failure = parts_.states.failure_in_present_call(Cause::mismatch);
  failure.what = what;
  core::throw_verdict(core::judge(parts_.members.failed_group(), failure, {}));
}

void Phases::require_same_calls(const std::vector<Fingerprint>& calls) const {
  if (const auto difference = core::first_difference(calls)) fail_by_mismatch(*difference);
}

}  // namespace ddp::cpu_backend
