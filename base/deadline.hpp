// A point in time until which an operation may wait, which does not count the time its process was stopped.
//
// A wait that wakes more than a second after its deadline did not sleep: the process was stopped (ctrl-z, a suspended
// laptop), and its peers very likely with it. It gets its full time again. That is about waits alone: an operation that
// stands in line behind others says begin() when its turn comes, and is late for no such reason.
//
// It may carry what can end its waits before their time (cut.hpp).
//
// Pure: the time goes in. Threads: one caller at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace ddp::base {

class Cut;

class Deadline {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = TimePoint::duration;

  static constexpr std::chrono::seconds kLateness{1};  // a loaded machine wakes a sleeper sooner than this

  // Of an operation that begins at `now`. One whose `end` has passed already has no time at all.
  Deadline(TimePoint now, TimePoint end) : full_time_(end > now ? end - now : Duration::zero()), end_(end) {}

  // Whether time is up. Starts anew where the process was stopped.
  bool passed(TimePoint now) {
    if (now < end_) return false;
    if (has_begun_late_ || full_time_ == Duration::zero() || now - end_ <= kLateness) return true;
    start_anew(now);
    return false;
  }

  // Says that the turn of an operation that stood in line has come. Past its end it has no time left, unless it was in
  // line when another's wait found, at `stopped_at`, that the process had been stopped: then it starts anew.
  void begin(TimePoint now, std::optional<TimePoint> stopped_at) {
    if (now < end_) return;
    if (stopped_at && *stopped_at > end_ - full_time_) return start_anew(now);
    has_begun_late_ = true;
  }

  // When it last started anew.
  std::optional<TimePoint> stopped_at() const { return stopped_at_; }

  // For poll(): rounded up, so that it does not wake just before the end, and at most an hour.
  int poll_timeout_ms(TimePoint now) const {
    if (now >= end_) return 0;
    const Duration left = std::min<Duration>(end_ - now, std::chrono::hours(1));
    return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
  }

  // Another within the same operation.
  Deadline part(TimePoint now, TimePoint end) const {
    Deadline out(now, end);
    out.cut_ = cut_;
    return out;
  }

  // What its waits watch; null for none. It outlives them.
  Cut* cut() const { return cut_; }
  void cut_by(Cut* cut) { cut_ = cut; }

  TimePoint end() const { return end_; }
  std::chrono::milliseconds full_time() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(full_time_);
  }

 private:
  void start_anew(TimePoint now) {
    stopped_at_ = now;
    end_ = now + full_time_;
  }

  Duration full_time_;
  TimePoint end_;
  bool has_begun_late_ = false;
  Cut* cut_ = nullptr;
  std::optional<TimePoint> stopped_at_;
};

}  // namespace ddp::base
