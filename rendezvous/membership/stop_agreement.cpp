#include "rendezvous/membership/stop_agreement.hpp"

#include <algorithm>
#include <utility>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kAnswerLimit = 1s;  // agents ask their workers' libddp, which answers from a thread of its own

}  // namespace

StopAgreement::Next StopAgreement::ask(const std::vector<int>& group_ranks, bool is_urgent, TimePoint now) {
  if (call_) return Next::tell_all;
  const auto before = std::exchange(answers_, {});
  for (const int rank : group_ranks)
    if (const auto found = before.find(rank); found != before.end())
      answers_.insert(*found);
    else
      answers_[rank];
  if (is_urgent) return ask_for_calls(now);
  if (phase_ == Phase::idle) phase_ = Phase::asking_who_takes_part;
  count_silent();
  return silent_.empty() ? go_on(now) : Next::tell_all;
}

StopAgreement::Next StopAgreement::answers(int group_rank, std::optional<std::uint64_t> call, TimePoint now) {
  const auto found = answers_.find(group_rank);
  if (call_ || found == answers_.end()) return Next::wait;
  if (!call) return phase_ == Phase::asking_for_calls ? Next::give_up : Next::wait;
  found->second.takes_part = true;
  if (*call != 0) found->second.call = call;
  if (is_answered(found->second)) silent_.erase(group_rank);
  return go_on(now);
}

StopAgreement::Next StopAgreement::ends(int group_rank, TimePoint now) {
  answers_.erase(group_rank);
  silent_.erase(group_rank);
  return phase_ == Phase::idle || call_ ? Next::wait : go_on(now);
}

void StopAgreement::give_up() {
  auto told = std::move(told_before_);
  *this = {};
  told_before_ = std::move(told);
}

void StopAgreement::count_silent() {
  silent_.clear();
  for (const auto& [rank, answer] : answers_)
    if (!is_answered(answer)) silent_.insert(silent_.end(), rank);
}

StopAgreement::Next StopAgreement::ask_for_calls(TimePoint now) {
  phase_ = Phase::asking_for_calls;
  deadline_ = now + kAnswerLimit;
  count_silent();
  return Next::tell_all;
}

// As far as the answers go.
StopAgreement::Next StopAgreement::go_on(TimePoint now) {
  if (!silent_.empty()) return Next::wait;
  if (phase_ == Phase::asking_who_takes_part) return ask_for_calls(now);
  std::optional<std::uint64_t> call;
  for (const auto& [rank, answer] : answers_) call = std::max(call, answer.call);
  if (call && !told_before_.empty()) {
    call = std::max(*call, *told_before_.rbegin());
    if (*told_before_.begin() != *call) return Next::give_up;
  }
  deadline_.reset();
  if (!call) return Next::wait;
  phase_ = Phase::agreed;
  call_ = call;
  return Next::tell_all;
}

std::optional<std::variant<PrepareStop, StopAt>> StopAgreement::message_for(int group_rank, std::uint32_t round,
                                                                            int signal_number) const {
  if (call_) return StopAt{round, *call_, signal_number};
  if (silent_.count(group_rank) == 0) return {};
  return PrepareStop{round, phase_ == Phase::asking_who_takes_part};
}

}  // namespace ddp::rendezvous
