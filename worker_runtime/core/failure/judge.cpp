#include "worker_runtime/core/failure/judge.hpp"

#include <algorithm>
#include <iterator>

#include "worker_runtime/core/failure/failure_message.hpp"
#include "worker_runtime/core/failure/fingerprint.hpp"

namespace ddp::core {

namespace {

using Reports = std::vector<RankReport>;

template <class Condition>
Reports reports_if(const Reports& reports, const Condition& condition) {
  Reports some;
  std::copy_if(reports.begin(), reports.end(), std::back_inserter(some), condition);
  return some;
}

// A rank that is in another call of the same number; null: none.
const RankReport* first_in_another_call(const Failure& failure, const Reports& reports) {
  if (failure.number == 0 || failure.is_pair()) return nullptr;
  const auto found = std::find_if(reports.begin(), reports.end(), [&](const RankReport& other) {
    return other.part == Part::done && other.is_in_call && other.number == failure.number &&
           other.call != failure.operation;
  });
  return found == reports.end() ? nullptr : &*found;
}

Verdict judge_timeout(const FailedGroup& group, const Failure& failure, const Reports& reports) {
  if (const RankReport* const other = first_in_another_call(failure, reports)) {
    const std::string difference = describe_difference({failure.rank, failure.operation}, {other->rank, other->call});
    return {Verdict::Kind::mismatch, mismatch_message(group, failure, difference, reports)};
  }
  const Reports awaited = reports_if(reports, [](const RankReport& rank) { return rank.part != Part::done; });
  const bool is_own = failure.rank == group.who.rank;
  const bool waits_for_this_rank =
      std::any_of(awaited.begin(), awaited.end(), [&](const RankReport& rank) { return rank.rank == group.who.rank; });
  if (!is_own && waits_for_this_rank) {
    return {Verdict::Kind::rank_failure, gave_up_message(group, failure, reports), {failure.rank}};
  }
  return {Verdict::Kind::timeout, timeout_message(group, failure, awaited, reports), ranks_of(awaited)};
}

// An error does not say which rank it is about. A rank that does not answer probably ended.
Verdict judge_error(const FailedGroup& group, const Failure& failure, const Reports& reports) {
  const bool is_own = failure.rank == group.who.rank;
  std::vector<int> silent =
      ranks_of(reports_if(reports, [](const RankReport& rank) { return rank.answer == Answer::silent; }));
  const std::string message = error_message(group, failure, silent, reports);
  if (is_own && failure.cause == Cause::device) return {Verdict::Kind::error, message, silent};
  if (!is_own && silent.empty()) silent = {failure.rank};
  return {Verdict::Kind::rank_failure, message, silent};
}

Verdict judge_departure(const FailedGroup& group, const Failure& failure) {
  if (failure.rank == group.who.rank) {
    return {Verdict::Kind::aborted,
            failure.cause == Cause::left ? "it was destroyed" : "it was aborted: " + failure.what};
  }
  const Presence presence = failure.cause == Cause::left ? Presence::left : Presence::aborted;
  return {Verdict::Kind::rank_failure,
          lost_message(group, failure, {{.rank = failure.rank, .presence = presence}}),
          {failure.rank}};
}

}  // namespace

Verdict judge(const FailedGroup& group, const Failure& failure, const Reports& reports) {
  switch (failure.cause) {
    case Cause::timed_out: return judge_timeout(group, failure, reports);
    case Cause::ranks_lost:
      return {Verdict::Kind::rank_failure, lost_message(group, failure, reports), ranks_of(reports)};
    case Cause::transport:
    case Cause::device: return judge_error(group, failure, reports);
    case Cause::mismatch: return {Verdict::Kind::mismatch, mismatch_message(group, failure, failure.what, reports)};
    case Cause::aborted:
    case Cause::left: return judge_departure(group, failure);
    case Cause::round_over: return {Verdict::Kind::round_over, failure.what};
  }
  return {Verdict::Kind::error, failure.what};
}

}  // namespace ddp::core
