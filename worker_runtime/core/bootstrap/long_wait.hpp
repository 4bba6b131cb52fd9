// A wait for others that says so, once, when it takes long: a person at a terminal learns what the program waits for
// before its deadline, which may be minutes away.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "base/deadline.hpp"

namespace ddp::core {

class LongWait {
 public:
  using TimePoint = base::Deadline::TimePoint;

  static constexpr std::chrono::seconds kLong{3};

  LongWait(int rank, int size, const base::Deadline& deadline) : rank_(rank), size_(size), end_(deadline.end()) {}

  // From then on it takes long; or the deadline, if that comes first.
  TimePoint first_end() const { return std::min(end_, long_at_); }
  bool is_long() const { return std::chrono::steady_clock::now() >= long_at_; }
  bool is_told() const { return is_told_; }

  // One line on stderr, the first time. `for_what`: "rank 3", "rank 0's store at node0:29500 (Connection refused)".
  void tell(const std::string& for_what) {
    if (is_told_) return;
    is_told_ = true;
    const auto left = std::chrono::ceil<std::chrono::seconds>(end_ - std::chrono::steady_clock::now());
    std::fprintf(stderr, "libddp: rank %d of %d waits for %s, for up to %lld s\n", rank_, size_, for_what.c_str(),
                 std::max<long long>(0, left.count()));
  }

 private:
  const int rank_, size_;
  const TimePoint end_, long_at_ = std::chrono::steady_clock::now() + kLong;
  bool is_told_ = false;
};

}  // namespace ddp::core
