#include "worker_runtime/core/failure/rank_report.hpp"

#include <algorithm>

#include "worker_runtime/core/failure/failure.hpp"

namespace ddp::core {

namespace {

RankReport report_of_progress(int rank, const std::optional<RankProgress>& progress) {
  RankReport report{.rank = rank, .answer = Answer::silent};
  if (!progress) return report;
  report.answer = Answer::told;
  report.number = progress->oldest != 0 ? progress->oldest : progress->called;
  report.call = progress->operation;
  report.is_in_call = progress->oldest != 0;
  report.progress = progress;
  return report;
}

bool has_called(const std::optional<RankProgress>& progress, std::uint64_t number) {
  return progress && progress->called >= number;
}

// A collective can complete on some ranks while another one hangs in it, and those go on to the next. So what counts is
// the earliest call, `number` at the latest, that some rank is in and another has not called.
std::uint64_t held_up_call(std::uint64_t number, const std::vector<std::optional<RankProgress>>& progress) {
  for (const auto& rank : progress) {
    if (!rank || rank->oldest == 0 || rank->oldest >= number) continue;
    const bool is_held_up = std::any_of(progress.begin(), progress.end(),
                                        [&](const auto& other) { return !has_called(other, rank->oldest); });
    if (is_held_up) number = rank->oldest;
  }
  return number;
}

}  // namespace

RankReport report_of(const RankState& state, std::uint64_t awaited, Part part) {
  RankReport report{.rank = state.rank, .pid = state.pid, .presence = state.presence, .answer = state.answer};
  report.part = part;
  if (state.answer != Answer::told || state.calls == 0) return report;
  report.number = state.calls;
  report.call = describe(state.last_call);
  report.is_in_call = state.calls == awaited;
  return report;
}

std::vector<RankReport> reports_of(const Failure& failure, const std::vector<std::optional<RankProgress>>& progress) {
  std::vector<RankReport> reports;
  const std::uint64_t call = held_up_call(failure.number, progress);
  const auto is_awaited = [&](int rank) {
    if (!failure.is_pair()) return !has_called(progress[static_cast<std::size_t>(rank)], call);
    return std::find(failure.peers.begin(), failure.peers.end(), rank) != failure.peers.end();
  };
  for (std::size_t i = 0; i < progress.size(); ++i) {
    const int rank = static_cast<int>(i);
    reports.push_back(report_of_progress(rank, progress[i]));
    if (is_awaited(rank)) reports.back().part = Part::missing;
  }
  if (!progress.empty()) return reports;
  for (const int peer : failure.peers) {
    reports.push_back({.rank = peer, .answer = Answer::not_asked, .part = Part::missing});
  }
  return reports;
}

std::vector<int> ranks_of(const std::vector<RankReport>& reports) {
  std::vector<int> ranks;
  for (const RankReport& report : reports) ranks.push_back(report.rank);
  return ranks;
}

}  // namespace ddp::core
