#include "rendezvous/membership/limits.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace ddp::rendezvous {

void age(std::vector<SpentRestarts>& spent, TimePoint::duration time) {
  for (auto& restarts : spent)
    restarts.age = std::min(restarts.age + std::chrono::duration_cast<std::chrono::milliseconds>(time), kAgeMax);
}

void RestartBudget::restate(int count, const std::optional<std::vector<SpentRestarts>>& spent, TimePoint now) {
  if (count <= count_) return;
  if (!spent) return add(count - count_, now);
  count_ = count;
  spent_.clear();
  for (const auto& restarts : *spent) note({now - restarts.age, restarts.count});
}

void RestartBudget::set_limits(int restarts_max, std::chrono::milliseconds window) {
  restarts_max_ = restarts_max;
  window_ = window;
}

void RestartBudget::refill() { spent_.clear(); }

bool RestartBudget::is_left(TimePoint now) const {
  if (window_.count() == 0) return count_ < restarts_max_;
  std::int64_t count = 0;
  for (const auto& spent : spent_)
    if (now - spent.when < window_) count += spent.count;
  return count < restarts_max_;
}

std::optional<std::vector<SpentRestarts>> RestartBudget::spent(TimePoint now) const {
  if (window_.count() == 0) return {};
  std::vector<SpentRestarts> out;
  for (const auto& spent : spent_)
    if (now - spent.when < window_)
      out.push_back({std::chrono::duration_cast<std::chrono::milliseconds>(now - spent.when), spent.count});
  return out;
}

void RestartBudget::add(int count, TimePoint now) {
  count_ += count;
  note({now, count});
}

void RestartBudget::note(Spent spent) {
  spent_.push_back(spent);
  if (spent_.size() <= kSpentRestartsMax) return;
  spent_[1].count = std::min(spent_[0].count, std::numeric_limits<int>::max() - spent_[1].count) + spent_[1].count;
  spent_.pop_front();
}

bool CrashLoop::end_round(const Progress& kept, bool has_worker_failed) {
  is_told_ = is_told_ || kept.commits || kept.checkpoint_step;
  const bool has_newer_checkpoint = kept.checkpoint_step.value_or(0) > furthest_checkpoint_;
  if (has_newer_checkpoint) furthest_checkpoint_ = *kept.checkpoint_step;
  const bool is_further = kept.commits.value_or(0) > 0 || has_newer_checkpoint;
  if (is_further)
    failures_ = 0;
  else if (has_worker_failed && is_told_)
    ++failures_;
  return is_further;
}

void RestartPause::end_round(AtOnce what) {
  if (what == AtOnce::no) {
    *this = {};
    return;
  }
  const bool is_struck = what != AtOnce::worker_failed;
  if (!is_struck || was_struck_) ++failures_;
  was_struck_ = was_struck_ || is_struck;
}

std::chrono::milliseconds RestartPause::length() const {
  constexpr std::chrono::milliseconds kFirst{100}, kLongest{10'000};
  if (failures_ == 0) return std::chrono::milliseconds(0);
  return failures_ > 7 ? kLongest : std::min(kLongest, kFirst * (1 << (failures_ - 1)));
}

void CoolDown::blame(const std::string& host, TimePoint now) {
  std::erase_if(hosts_, [&](const auto& entry) {
    const auto& blamed = entry.second.blamed;
    const auto& let_in_at = entry.second.let_in_at;
    return entry.second.until <= now && (blamed.empty() || now - blamed.back() >= kBlameWindow) &&
           (!let_in_at || now - *let_in_at >= kBlameWindow);
  });
  auto& its = hosts_[host];
  while (!its.blamed.empty() && now - its.blamed.front() >= kBlameWindow) its.blamed.pop_front();
  its.blamed.push_back(now);
  if (its.blamed.size() < kBlames) return;
  its.blamed.pop_front();  // one more after its time is over, and it is left out again
  leave_out(host, now);
}

void CoolDown::leave_out(const std::string& host, TimePoint now) {
  auto& its = hosts_[host];
  its.until = now + kOut;
  its.may_be_let_in = false;
  last_until_ = std::max(last_until_, now + kOut);
}

bool CoolDown::leave_out_for_link(const std::string& host, TimePoint now) {
  leave_out(host, now);
  auto& its = hosts_[host];
  its.may_be_let_in = !its.let_in_at || now - *its.let_in_at >= kBlameWindow;
  return its.may_be_let_in;
}

void CoolDown::let_in(const std::string& host, TimePoint now) {
  const auto found = hosts_.find(host);
  if (found == hosts_.end() || !std::exchange(found->second.may_be_let_in, false)) return;
  found->second.until = now;
  found->second.let_in_at = now;
}

std::optional<TimePoint> CoolDown::out_until(const std::string& host, TimePoint now) const {
  const auto found = hosts_.find(host);
  if (found == hosts_.end() || found->second.until <= now) return {};
  return found->second.until;
}

}  // namespace ddp::rendezvous
