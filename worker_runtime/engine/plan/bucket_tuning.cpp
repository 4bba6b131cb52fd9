#include "worker_runtime/engine/plan/bucket_tuning.hpp"

#include <algorithm>
#include <limits>

namespace ddp::gradient_engine {

std::optional<BucketCaps> BucketTuning::begin_window(std::uint64_t good_windows,
                                                     std::chrono::steady_clock::time_point now) {
  if (is_choice_due()) return std::nullopt;
  const bool is_measured = good_windows == good_windows_ + 1 && good_windows > good_windows_before_ + 1;
  if (is_measured) durations_[at_].push_back(std::chrono::nanoseconds(now - last_begin_).count());
  good_windows_ = good_windows;
  last_begin_ = now;
  if (good_windows < good_windows_before_ + kWindowsEach) return std::nullopt;
  good_windows_before_ = good_windows;
  if (++at_ == candidates_.size()) return std::nullopt;
  return candidates_[at_];
}

std::vector<std::int64_t> BucketTuning::times() const {
  std::vector<std::int64_t> times;
  for (std::vector<std::int64_t> of_one : durations_) {
    const auto middle = of_one.begin() + static_cast<std::ptrdiff_t>(of_one.size() / 2);
    std::nth_element(of_one.begin(), middle, of_one.end());
    times.push_back(of_one.empty() ? 0 : *middle);
  }
  return times;
}

BucketCaps BucketTuning::choose(const std::vector<std::int64_t>& times_of_all) const {
  std::size_t best = 0;
  std::int64_t best_time = std::numeric_limits<std::int64_t>::max();
  for (std::size_t candidate = 0; candidate < candidates_.size(); ++candidate) {
    std::int64_t slowest = 0;
    for (std::size_t i = candidate; i < times_of_all.size(); i += candidates_.size()) {
      slowest = std::max(slowest, times_of_all[i]);
    }
    if (slowest >= best_time) continue;
    best = candidate;
    best_time = slowest;
  }
  return candidates_[best];
}

}  // namespace ddp::gradient_engine
