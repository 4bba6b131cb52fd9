#include "rendezvous/link/job_clock.hpp"

#include <algorithm>

namespace ddp::rendezvous {

using std::chrono::milliseconds;

void JobClock::note(const Reading& reading) {
  readings_.push_front(reading);
  if (readings_.size() > kReadings) readings_.pop_back();
}

const JobClock::Reading* JobClock::best() const {
  const auto is_quicker = [](const Reading& a, const Reading& b) { return a.told - a.asked < b.told - b.asked; };
  const auto found = std::min_element(readings_.begin(), readings_.end(), is_quicker);
  return found != readings_.end() ? &*found : nullptr;
}

milliseconds JobClock::job_time(TimePoint now) const {
  const auto* reading = best();
  if (reading == nullptr) return std::chrono::floor<milliseconds>(now - began_);
  const auto middle = reading->asked + (reading->told - reading->asked) / 2;
  return reading->job_time + std::chrono::floor<milliseconds>(now - middle);
}

// The answer and job_time() leave out the part of a millisecond. A clock that is being set right runs too fast or too
// slow by a part in 2,000 at most (adjtimex(2)), and two clocks by twice that.
milliseconds JobClock::error(TimePoint now) const {
  const auto* reading = best();
  if (reading == nullptr) return milliseconds(0);
  const auto drift = std::max(now - reading->told, TimePoint::duration(0)) / 1000;
  return std::chrono::ceil<milliseconds>((reading->told - reading->asked) / 2 + drift) + milliseconds(2);
}

}  // namespace ddp::rendezvous
