#include "rendezvous/link/job_clock.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using TimePoint = JobClock::TimePoint;

TEST(JobClock, ShowsTheTimeSinceItBeganUntilAnAnswerComes) {
  JobClock clock(TimePoint{1h});
  EXPECT_EQ(clock.job_time(TimePoint{1h} + 5s), 5s);
  EXPECT_EQ(clock.error(TimePoint{2h}), 0ms);
}

TEST(JobClock, TrustsTheQuickestOfTheLastRoundTrips) {
  const TimePoint now{1h};
  JobClock clock(now);
  clock.note({now, now + 2ms, 100s});
  for (std::size_t i = 1; i < JobClock::kReadings; ++i) clock.note({now + 1s, now + 3s, 102s});
  EXPECT_EQ(clock.job_time(now + 11ms), 100s + 10ms);
  EXPECT_EQ(clock.error(now + 2ms), 3ms);
  EXPECT_EQ(clock.error(now + 2ms + 40s), 43ms) << "the clocks drift apart";
  clock.note({now + 1s, now + 3s, 102s});
  EXPECT_EQ(clock.job_time(now + 2s), 102s) << "the quick one is too long ago";
  EXPECT_EQ(clock.error(now + 3s), 1002ms);
}

// Questions and answers take different times, as where only one way is busy.
TEST(JobClock, IsNeverWrongByMoreThanItsError) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 dice(seed);
    const auto up_to = [&dice](std::uint64_t most) { return microseconds(dice() % (most + 1)); };
    const TimePoint job_began{1h};  // on a clock that nobody sees
    const auto ahead = up_to(1'000'000'000'000) - 500'000s;
    const auto slowest = dice() % 2 == 0 ? 300u : 2'000'000u;
    TimePoint truth = job_began + up_to(1'000'000'000);
    JobClock clock(truth + ahead);
    for (int i = 0; i < 50; ++i) {
      truth += up_to(5'000'000);
      const auto asked = truth + ahead;
      truth += up_to(slowest);
      const auto told = std::chrono::floor<milliseconds>(truth - job_began);
      truth += up_to(slowest / 10);
      clock.note({asked, truth + ahead, told});
      const auto wrong = clock.job_time(truth + ahead) - (truth - job_began);
      ASSERT_LE(std::chrono::abs(wrong), clock.error(truth + ahead));
    }
  }
}

}  // namespace
}  // namespace ddp::rendezvous
