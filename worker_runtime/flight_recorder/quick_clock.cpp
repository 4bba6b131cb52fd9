#include "worker_runtime/flight_recorder/quick_clock.hpp"

#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace ddp::flight_recorder {

namespace {

using std::chrono::nanoseconds;

constexpr double kKeptNs = 10e6;
constexpr std::chrono::milliseconds kRateAfter{1};  // to know the rate to one in ten thousand
// 5 to 10 us: looks at the counter and both clocks take a tenth of a us.
constexpr std::uint64_t kTogetherTicks = 20'000;

Moment clocks() { return {std::chrono::steady_clock::now(), now()}; }

std::uint64_t counter() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return 0;
#endif
}

bool kernel_goes_by_counter() {
#if defined(__x86_64__)
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  return std::getline(file, name) && name == "tsc";
#else
  return false;
#endif
}

}  // namespace

QuickClock::QuickClock() {
  static const bool goes_by_counter = kernel_goes_by_counter();
  has_counter_ = goes_by_counter;
}

Moment QuickClock::now() {
  if (!has_counter_) return clocks();
  const std::uint64_t ticks = counter();
  const std::uint64_t since_set = ticks - set_.ticks;
  if (since_set >= ticks_kept_) return set(ticks);
  const nanoseconds passed(static_cast<std::int64_t>(static_cast<double>(since_set) * ns_per_tick_));
  return {set_.moment.steady + passed, set_.moment.wall + passed};
}

// Unless this thread lost its core in between. The rate is that of the last 10 ms, or of the first.
Moment QuickClock::set(std::uint64_t ticks) {
  const Setting now{clocks(), ticks};
  if (counter() - ticks > kTogetherTicks) return now.moment;
  if (rate_from_.ticks == 0) rate_from_ = now;
  set_ = now;
  const nanoseconds passed = now.moment.steady - rate_from_.moment.steady;
  if (passed >= kRateAfter && ticks > rate_from_.ticks) {
    ns_per_tick_ = static_cast<double>(passed.count()) / static_cast<double>(ticks - rate_from_.ticks);
    ticks_kept_ = static_cast<std::uint64_t>(kKeptNs / ns_per_tick_);
    rate_from_ = now;
  }
  return now.moment;
}

}  // namespace ddp::flight_recorder
