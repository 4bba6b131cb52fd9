// Tries sizes of buckets in the first steps of training, and keeps the best.
//
// Each candidate is in place for kWindowsEach windows that went well on all ranks. The duration of a window is measured
// from its start to the start of the next one; the first window is left out, because memory is new then. The median is
// the rank's time for the candidate. The largest time of any rank is what candidates are compared by.
//
// Pure; one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "worker_runtime/engine/layout/layout.hpp"

namespace ddp::gradient_engine {

class BucketTuning {
 public:
  static constexpr std::uint64_t kWindowsEach = 6;

  // candidates: not empty; the first is in place now.
  explicit BucketTuning(std::vector<BucketCaps> candidates)
      : candidates_(std::move(candidates)), durations_(candidates_.size()) {}

  // A window begins. good_windows: how many have gone well so far, the same on all ranks. Returns the caps of the next
  // candidate if its turn has come.
  std::optional<BucketCaps> begin_window(std::uint64_t good_windows, std::chrono::steady_clock::time_point now);

  // Whether all candidates have been tried.
  bool is_choice_due() const { return at_ == candidates_.size(); }

  // This rank's time for each candidate, in ns.
  std::vector<std::int64_t> times() const;

  // The best. times_of_all: times() of rank 0, of rank 1, ...
  BucketCaps choose(const std::vector<std::int64_t>& times_of_all) const;

 private:
  std::vector<BucketCaps> candidates_;
  std::vector<std::vector<std::int64_t>> durations_;  // by candidate, in ns
  std::size_t at_ = 0;                                // the candidate in place; their number at the end
  std::uint64_t good_windows_before_ = 0;             // this candidate
  std::uint64_t good_windows_ = 0;                    // at the start of the last window
  std::chrono::steady_clock::time_point last_begin_{};
};

}  // namespace ddp::gradient_engine
