#include "worker_runtime/core/failure/call_outcome.hpp"

#include <algorithm>
#include <utility>

namespace ddp::core {

namespace {

using Kind = CallOutcome::Kind;

// Ranks without which a call cannot complete.
struct LostRanks {
  std::vector<int> causes;
  std::vector<int> effects;  // gave up, for a rank that is not known
};

std::vector<int> noted_causes(const std::vector<NotedRank>& noted) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < noted.size(); ++rank) {
    const bool is_cause = noted[rank].trouble == Trouble::lost && noted[rank].presence != Presence::gave_up;
    if (is_cause) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// A rank that gave up has told why: another one was lost, or did not come.
CallOutcome outcome_of(LostRanks lost, const std::vector<NotedRank>& noted) {
  if (lost.causes.empty()) lost.causes = noted_causes(noted);
  if (!lost.causes.empty()) {
    std::sort(lost.causes.begin(), lost.causes.end());
    lost.causes.erase(std::unique(lost.causes.begin(), lost.causes.end()), lost.causes.end());
    return {Kind::lost, std::move(lost.causes)};
  }
  if (auto missing = noted_missing(noted); !missing.empty()) return {Kind::timed_out, std::move(missing)};
  lost.effects.erase(std::unique(lost.effects.begin(), lost.effects.end()), lost.effects.end());
  return {Kind::lost, std::move(lost.effects)};
}

// Of this host: ranks that have gone and will not arrive.
LostRanks lost_here(const RanksInPhase& ranks) {
  LostRanks lost;
  std::vector<int> gone_after_arrival;  // these made those give up that went before they arrived
  bool has_only_effects = true;
  for (std::size_t index = 0; index < ranks.here.size(); ++index) {
    const LocalRank& rank = ranks.here[index];
    if (rank.is_gone && !rank.has_arrived) {
      const LocalRank& cause = ranks.here[cause_of(ranks.here, ranks.own, index)];
      const bool gave_up = cause.presence == Presence::gave_up;
      (gave_up && !ranks.noted.empty() ? lost.effects : lost.causes).push_back(cause.rank);
      has_only_effects = has_only_effects && gave_up;
    } else if (rank.is_gone && rank.presence != Presence::here && rank.presence != Presence::gave_up &&
               index != ranks.own) {
      gone_after_arrival.push_back(rank.rank);
    }
  }
  const bool is_any_lost = !lost.causes.empty() || !lost.effects.empty();
  if (is_any_lost && has_only_effects && !gone_after_arrival.empty()) lost.causes = std::move(gone_after_arrival);
  return lost;
}

}  // namespace

std::optional<CallOutcome> failure_of(const RanksInPhase& ranks) {
  if (ranks.is_interrupted) return CallOutcome{Kind::interrupted, {}};
  LostRanks lost = lost_here(ranks);
  for (std::size_t rank = 0; rank < ranks.noted.size(); ++rank) {
    const NotedRank& noted = ranks.noted[rank];
    if (noted.trouble != Trouble::lost || noted.calls >= ranks.call) continue;
    (noted.presence == Presence::gave_up ? lost.effects : lost.causes).push_back(static_cast<int>(rank));
  }
  if (lost.causes.empty() && lost.effects.empty()) return std::nullopt;
  return outcome_of(std::move(lost), ranks.noted);
}

CallOutcome failure_without(const RanksInPhase& ranks, int rank) {
  if (auto found = failure_of(ranks)) return std::move(*found);
  const auto here =
      std::find_if(ranks.here.begin(), ranks.here.end(), [&](const LocalRank& other) { return other.rank == rank; });
  if (here == ranks.here.end()) return outcome_of({{}, {rank}}, ranks.noted);
  const std::size_t cause = cause_of(ranks.here, ranks.own, static_cast<std::size_t>(here - ranks.here.begin()));
  return outcome_of({{}, {ranks.here[cause].rank}}, ranks.noted);
}

std::optional<CallOutcome> failure_ahead(const RanksInPhase& ranks) {
  if (ranks.here[ranks.own].presence != Presence::here) return CallOutcome{Kind::interrupted, {}};
  LostRanks lost;
  bool is_any_ahead = false;
  for (std::size_t index = 0; index < ranks.here.size(); ++index) {
    const LocalRank& rank = ranks.here[index];
    const bool has_left = rank.is_gone && rank.presence != Presence::here;
    is_any_ahead = is_any_ahead || (rank.has_arrived && has_left);
    if (!has_left && (!rank.has_ended || rank.has_arrived)) continue;  // what it arrived with stays as it was
    const LocalRank& cause = ranks.here[cause_of(ranks.here, ranks.own, index)];
    (cause.presence == Presence::gave_up ? lost.effects : lost.causes).push_back(cause.rank);
  }
  if (!is_any_ahead) return std::nullopt;
  if (ranks.is_interrupted) return CallOutcome{Kind::interrupted, {}};
  return outcome_of(std::move(lost), ranks.noted);
}

std::size_t cause_of(const std::vector<LocalRank>& here, std::size_t own, std::size_t index) {
  for (std::size_t step = 0; step < here.size(); ++step) {
    const auto next = here[index].gave_up_for;
    const bool is_effect = here[index].presence == Presence::gave_up && next && *next < here.size() && *next != own;
    if (!is_effect) break;
    index = *next;
  }
  return index;
}

std::vector<int> noted_missing(const std::vector<NotedRank>& noted) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < noted.size(); ++rank) {
    if (noted[rank].trouble == Trouble::missing) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace ddp::core
