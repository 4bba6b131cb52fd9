#include "worker_runtime/backends/cpu/group/rank_states.hpp"

#include <algorithm>
#include <cstddef>

namespace ddp::cpu_backend {

using core::RankState;

RankState RankStates::state_of(int rank) const {
  RankState state{rank, members_.pids[static_cast<std::size_t>(rank)]};
  if (members_.is_here(rank)) {
    const int index = members_.layout.index_of(rank);
    state.presence = arrivals_.presence().of(index);
    state.calls = arrivals_.posts().calls(index);
    state.last_call = arrivals_.posts().last_call(index);
    return state;
  }
  state.answer = core::Answer::not_asked;
  if (const RankNote& note = notes_[static_cast<std::size_t>(rank)]; note.trouble.load() != Trouble::none) {
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

bool RankStates::is_noted_lost(int rank) const {
  return !notes_.empty() && notes_[static_cast<std::size_t>(rank)].trouble.load() == Trouble::lost;
}

std::optional<Presence> RankStates::end_of(int rank) const {
  if (!is_noted_lost(rank)) return std::nullopt;
  return notes_[static_cast<std::size_t>(rank)].presence.load();
}

bool RankStates::is_cut_off(int rank) const {
  const RankNote& note = notes_[static_cast<std::size_t>(rank)];
  return note.trouble.load() == Trouble::missing && note.presence.load() == Presence::unreachable;
}

std::vector<int> RankStates::cut_off() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(notes_.size()); ++rank) {
    if (is_cut_off(rank)) ranks.push_back(rank);
  }
  return ranks;
}

bool RankStates::all_have(Presence presence, const std::vector<int>& ranks) const {
  return !ranks.empty() &&
         std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return state_of(rank).presence == presence; });
}

RankNews RankStates::news_of(int rank, Trouble trouble) const {
  RankState state = state_of(rank);
  if (state.presence == Presence::unreachable) state.presence = Presence::here;  // another host may well reach it
  return {trouble, rank, state.pid, state.presence, state.calls, encode(state.last_call)};
}

core::Failure RankStates::failure_in_present_call(core::Cause cause) const {
  const std::uint64_t number = arrivals_.posts().own_call();
  return {.cause = cause,
          .rank = members_.who.rank,
          .number = number,
          .operation = number == 0 ? "the start of the group" : describe(arrivals_.posts().own_post())};
}

std::vector<core::RankReport> RankStates::reports_of(std::span<const int> ranks) const {
  std::vector<core::RankReport> reports;
  for (const int rank : ranks) {
    reports.push_back(core::report_of(state_of(rank), arrivals_.posts().own_call(), core::Part::missing));
  }
  return reports;
}

}  // namespace ddp::cpu_backend
