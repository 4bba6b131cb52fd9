#include "rendezvous/membership/run_report.hpp"

#include <algorithm>
#include <cstdio>

#include "base/printable.hpp"
#include "rendezvous/membership/failure.hpp"

namespace ddp::rendezvous {

using std::chrono::milliseconds;

void RunBook::end_called(TimePoint happened, TimePoint now) {
  if (phase_ == Phase::waiting || phase_ == Phase::stopping) return;
  happened = std::clamp(happened, mark_, now);
  way_ = {};
  way_.detect = std::chrono::duration_cast<milliseconds>(now - happened);
  if (phase_ != Phase::starting) {
    rounds_.back().worked = since_mark(happened);
    worked_ += rounds_.back().worked;
  }
  phase_ = Phase::stopping;
  mark_ = now;
}

void RunBook::all_ended(TimePoint now) {
  if (phase_ == Phase::waiting) return;
  if (phase_ != Phase::stopping) end_called(now, now);
  way_.stop = since_mark(now);
  phase_ = Phase::waiting;
  mark_ = now;
}

void RunBook::begun(std::uint32_t round, const std::string& why, int nodes, int world_size, TimePoint now) {
  if (phase_ != Phase::waiting) all_ended(now);
  way_.round = round;
  way_.why = why;
  way_.nodes = nodes;
  way_.world_size = world_size;
  way_.rendezvous = since_mark(now);
  rounds_.push_back(way_);
  if (rounds_.size() > kRoundsReportedMax) rounds_.pop_front();
  ++rounds_count_;
  way_ = {};
  phase_ = Phase::starting;
  mark_ = now;
}

void RunBook::all_started(TimePoint now) {
  if (phase_ != Phase::starting) return;
  rounds_.back().start = since_mark(now);
  phase_ = Phase::started;
  mark_ = now;
}

void RunBook::first_step(TimePoint now) {
  if (phase_ == Phase::starting) all_started(now);
  if (phase_ != Phase::started) return;
  rounds_.back().first_step = since_mark(now);
  phase_ = Phase::working;
  mark_ = now;
}

RunReport RunBook::at(TimePoint now) const {
  RunReport out;
  out.total = std::chrono::duration_cast<milliseconds>(now - began_);
  out.worked = worked_;
  out.rounds_count = rounds_count_;
  out.rounds.assign(rounds_.begin(), rounds_.end());
  if (phase_ == Phase::started || phase_ == Phase::working) {
    out.rounds.back().worked = since_mark(now);
    out.worked += out.rounds.back().worked;
  }
  return out;
}

namespace {

std::string text_of(const std::optional<milliseconds>& duration) {
  return duration ? describe_duration(*duration) : "-";
}

}  // namespace

std::string describe(const RunReport& report) {
  char goodput[16];
  std::snprintf(goodput, sizeof goodput, "%.1f %%", 100 * report.goodput());
  std::string out = counted(report.rounds_count, "round") + " in " + describe_duration(report.total) + ", at work " +
                    goodput + " of the time";
  if (report.rounds_count < 2) return out;
  if (static_cast<std::size_t>(report.rounds_count) > report.rounds.size())
    out += "; the last " + std::to_string(report.rounds.size()) + " were";
  for (const auto& round : report.rounds) {
    out += "\n  round " + std::to_string(round.round) + ": " + counted(round.nodes, "node") + ", " +
           counted(round.world_size, "worker") + ", worked " + describe_duration(round.worked);
    out += "; detect " + describe_duration(round.detect) + ", stop " + describe_duration(round.stop) + ", rendezvous " +
           describe_duration(round.rendezvous) + ", start " + text_of(round.start) + ", first step " +
           text_of(round.first_step);
    if (!round.why.empty()) out += "\n    because " + base::printable(round.why);
  }
  return out;
}

}  // namespace ddp::rendezvous
