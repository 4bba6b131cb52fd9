#include "rendezvous/membership/run_report.hpp"

#include <algorithm>
#include <utility>

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
  worked_until_ = happened;
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
  if (!rounds_.empty()) note_lost();
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
  tells_of_steps_ = true;
  phase_ = Phase::working;
  mark_ = now;
}

void RunBook::note_lost() {
  auto& last = rounds_.back();
  const auto keeps = std::exchange(keeps_, false);
  const auto kept_at = std::exchange(kept_at_, std::nullopt);
  if (!last.first_step) return;
  if (!keeps) {
    is_useful_known_ = false;
    return;
  }
  const auto since = kept_at ? std::chrono::duration_cast<milliseconds>(worked_until_ - *kept_at) : last.worked;
  last.lost = std::clamp(since, milliseconds(0), last.worked);
  useful_ += last.worked - *last.lost;
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
  if (tells_of_steps_ && is_useful_known_) {
    const auto& last = out.rounds.back();
    out.useful = useful_ + (last.first_step ? last.worked : milliseconds(0));
  }
  return out;
}

}  // namespace ddp::rendezvous
