#include "worker_runtime/core/failure/departure.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "worker_runtime/agent_link/process_link.hpp"
#include "worker_runtime/flight_recorder/recorder.hpp"

namespace ddp::core {

namespace {

using worker_link::Departure;

void tell(const process_group::GroupMember& who, Departure departure) {
  auto* const link = agent_link::process_link();
  if (link == nullptr || !who.is_of_launcher || who.round.term == 0) return;
  departure.round = who.round.number;
  link->depart(departure);
}

}  // namespace

void tell_failure(const FailedGroup& group, const Verdict& verdict, const std::vector<int>& unreached) noexcept try {
  if (verdict.kind == Verdict::Kind::aborted || verdict.kind == Verdict::Kind::round_over) return;
  const auto of_job = [&](int rank) {
    return group.job_ranks.empty() ? rank : group.job_ranks.at(static_cast<std::size_t>(rank));
  };
  Departure departure;
  departure.kind = Departure::Kind::for_others;
  departure.why = verdict.message.substr(0, verdict.message.find('\n'));
  for (const int rank : verdict.ranks) {
    if (rank == group.who.rank) continue;
    departure.ranks.push_back(of_job(rank));
    const bool is_reached = std::find(unreached.begin(), unreached.end(), rank) == unreached.end();
    if (verdict.kind == Verdict::Kind::timeout && is_reached) departure.hung_ranks.push_back(of_job(rank));
  }
  for (const int rank : unreached) departure.unreached.push_back(of_job(rank));
  departure.was_in_call = flight_recorder::process_recorder().has_incomplete_call();
  tell(group.who, std::move(departure));
} catch (...) {  // as the header says
}

void tell_departure(const process_group::GroupMember& who, bool is_own_error, const std::string& why) noexcept try {
  Departure departure;
  departure.kind = is_own_error ? Departure::Kind::own_error : Departure::Kind::in_order;
  departure.why = why.substr(0, why.find('\n'));
  tell(who, std::move(departure));
} catch (...) {  // as the header says
}

}  // namespace ddp::core
