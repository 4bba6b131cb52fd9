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
  const std::uint64_t ticks = counter();
  const std::uint64_t since_set = ticks - set_ticks_;
  if (since_set >= ticks_kept_) return set(ticks);
  const nanoseconds passed(static_cast<std::int64_t>(static_cast<double>(since_set) * ns_per_tick_));
  return {set_to_.steady + passed, set_to_.wall + passed};
}

Moment QuickClock::set(std::uint64_t ticks) {
  const Moment moment{std::chrono::steady_clock::now(), flight_recorder::now()};
  if (!has_counter_) return moment;
  if (first_ticks_ == 0) {
    first_ = moment;
    first_ticks_ = ticks;
  }
  set_to_ = moment;
  set_ticks_ = ticks;
  const nanoseconds passed = moment.steady - first_.steady;
  if (passed >= kRateAfter && ticks > first_ticks_) {
    ns_per_tick_ = static_cast<double>(passed.count()) / static_cast<double>(ticks - first_ticks_);
    ticks_kept_ = static_cast<std::uint64_t>(kKeptNs / ns_per_tick_);
  }
  return moment;
}

}  // namespace ddp::flight_recorder
