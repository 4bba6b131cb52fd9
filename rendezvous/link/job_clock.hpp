// What the job's clock shows, as far as this node can tell: the clock of the process that serves membership.
//
// The endpoint is asked for the time again and again. Its answer is of some moment between the question and the
// arrival of the answer. So the time in the middle is wrong by half of that round trip at most, and the quickest of
// the last round trips counts.
//
// Pure: the times go in.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>

namespace ddp::rendezvous {

class JobClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Reading {
    TimePoint asked, told;                  // on this node's clock
    std::chrono::milliseconds job_time{0};  // in the answer, without the part of a millisecond
  };

  // Before the first reading the job's clock shows the time since then.
  explicit JobClock(TimePoint began) : began_(began) {}

  void note(const Reading& reading);
  void forget() { readings_.clear(); }  // another endpoint has another clock

  std::chrono::milliseconds job_time(TimePoint now) const;
  std::chrono::milliseconds error(TimePoint now) const;  // at most, either way

  static constexpr std::size_t kReadings = 8;  // clocks of nodes drift apart, so older ones do not count

 private:
  const Reading* best() const;

  TimePoint began_;
  std::deque<Reading> readings_;
};

}  // namespace ddp::rendezvous
