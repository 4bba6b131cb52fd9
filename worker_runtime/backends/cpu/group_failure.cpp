#include "worker_runtime/backends/cpu/group.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "worker_runtime/core/failure/judge.hpp"

namespace ddp::cpu_backend {

// Tells the other ranks first: writing a file takes its time.
std::string Group::give_up_for(const Error& error) {
  if (give_up(Presence::gave_up, core::verdict_of(error))) tell_failure(error.what());
  note_down_opening();
  if (in_turn_) is_late_ ? log_.refuse(*in_turn_) : log_.fail(*in_turn_);
  return is_abort_elsewhere_ ? error.what() : error.what() + log_.write_failure(error.what());
}

void Group::fail(const Outcome& outcome, const io::Deadline& deadline) {
  is_abort_elsewhere_ = outcome.kind == Outcome::Kind::lost && all_have(Presence::aborted, outcome.ranks);
  if (links_) {
    const bool is_late = outcome.kind == Outcome::Kind::timed_out;
    for (const int rank : outcome.ranks) links_->tell(news_of(rank, is_late ? Trouble::missing : Trouble::lost));
  }
  switch (outcome.kind) {
    case Outcome::Kind::lost:
      arrivals_.give_up_for(outcome.ranks.front());
      core::throw_verdict(
          core::judge(failed_group(), failure_in_present_call(Cause::ranks_lost), reports_of(outcome.ranks)));
    case Outcome::Kind::timed_out: throw_timeout(outcome.ranks, deadline);
    case Outcome::Kind::interrupted:
    case Outcome::Kind::complete: break;
  }
  throw_unusable();
}

void Group::throw_timeout(std::span<const int> missing, const io::Deadline& deadline) const {
  Failure failure = failure_in_present_call(Cause::timed_out);
  failure.limit = deadline.full_time();
  core::throw_verdict(core::judge(failed_group(), failure, reports_of(missing)));
}

void Group::require_same_calls(const std::vector<Fingerprint>& calls) const {
  const auto difference = core::first_difference(calls);
  if (!difference) return;
  Failure failure = failure_in_present_call(Cause::mismatch);
  failure.what = *difference;
  core::throw_verdict(core::judge(failed_group(), failure, {}));
}

void Group::require_usable() const {
  if (is_given_up()) throw_unusable();
}

void Group::throw_unusable() const {
  const std::lock_guard lock(reason_mutex_);
  core::throw_unusable(reason_);
}

void Group::abort(const std::string& reason, AbortCause cause) {
  const Failure failure{
      .cause = cause == AbortCause::round_over ? Cause::round_over : Cause::aborted, .rank = who_.rank, .what = reason};
  give_up(Presence::aborted, core::judge(failed_group(), failure, {}));
}

// The first reason counts: whether this was it.
bool Group::give_up(Presence how, Verdict why) {
  bool is_first = false;
  {
    const std::lock_guard lock(reason_mutex_);
    is_first = !given_up_.load();
    if (is_first) {
      reason_ = std::move(why);
      given_up_.store(true, std::memory_order_release);
    }
  }
  arrivals_.leave(how);  // also where another thread is about to: this one's caller may write to its memory right after
  if (!is_first) return false;
  arrivals_.interrupt();
  pairs_.wake_all();
  cut_waits();
  if (peer_links_) peer_links_->close(how);
  if (!links_) return true;
  RankNews farewell = news_of(who_.rank, Trouble::lost);
  farewell.presence = how;
  links_->say_farewell(farewell);
  links_->wake();
  return true;
}

void Group::tell_failure(const std::string& reason) {
  const std::lock_guard lock(listener_mutex_);
  failure_ = reason;
  if (const auto tell = std::exchange(listener_, {})) tell(reason);
}

void Group::set_failure_listener(process_group::Backend::FailureListener tell) {
  const std::lock_guard lock(listener_mutex_);
  if (!failure_ || !tell) {
    listener_ = std::move(tell);
  } else {
    tell(*failure_);
  }
}

core::FailedGroup Group::failed_group() const { return {.who = who_, .job_ranks = job_ranks_, .pid = ::getpid()}; }

Failure Group::failure_in_present_call(Cause cause) const {
  const std::uint64_t number = arrivals_.own_call();
  return {.cause = cause,
          .rank = who_.rank,
          .number = number,
          .operation = number == 0 ? "the start of the group" : describe(arrivals_.own_post())};
}

// As far as this rank knows: of another host's ranks only what was noted.
RankState Group::state_of(int rank) const {
  RankState state{rank, pids_[static_cast<std::size_t>(rank)]};
  if (layout_.host_of(rank) == layout_.host_of(who_.rank)) {
    const int index = layout_.index_of(rank);
    state.presence = arrivals_.presence(index);
    state.calls = arrivals_.calls(index);
    state.last_call = arrivals_.last_call(index);
    return state;
  }
  state.answer = core::Answer::not_asked;
  if (const RankNote& note = memory_->notes()[static_cast<std::size_t>(rank)]; note.trouble.load() != Trouble::none) {
    FingerprintWords words{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = note.last_call[i].load();
    state.presence = note.presence.load();
    state.calls = note.calls.load();
    state.last_call = core::decode(words);
    const bool has_told = state.presence != Presence::unreachable && state.calls != kCallsUnknown;
    const bool is_silent = !has_told && note.trouble.load() == Trouble::missing;
    state.answer = has_told ? core::Answer::told : is_silent ? core::Answer::silent : core::Answer::not_asked;
  }
  return state;
}

// Whether it is on another host that has gone silent.
bool Group::is_cut_off(int rank) const {
  const RankNote& note = memory_->notes()[static_cast<std::size_t>(rank)];
  return note.trouble.load() == Trouble::missing && note.presence.load() == Presence::unreachable;
}

// Of ranks that have not come to the present call, or not to its end.
std::vector<core::RankReport> Group::reports_of(std::span<const int> ranks) const {
  std::vector<core::RankReport> reports;
  for (const int rank : ranks) {
    reports.push_back(core::report_of(state_of(rank), arrivals_.own_call(), core::Part::missing));
  }
  return reports;
}

bool Group::all_have(Presence presence, const std::vector<int>& ranks) const {
  return !ranks.empty() &&
         std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return state_of(rank).presence == presence; });
}

RankNews Group::news_of(int rank, Trouble trouble) const {
  RankState state = state_of(rank);
  if (state.presence == Presence::unreachable) state.presence = Presence::here;  // another host may well reach it
  return {trouble, rank, state.pid, state.presence, state.calls, encode(state.last_call)};
}

}  // namespace ddp::cpu_backend
