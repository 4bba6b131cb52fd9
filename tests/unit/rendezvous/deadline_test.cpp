#include "base/deadline.hpp"

#include <gtest/gtest.h>

namespace ddp::base {
namespace {

using namespace std::chrono_literals;

constexpr Deadline::TimePoint kStart{1000s};

TEST(Deadline, PassesAtItsEnd) {
  Deadline deadline(kStart, kStart + 10s);
  EXPECT_EQ(deadline.full_time(), 10s);
  EXPECT_FALSE(deadline.passed(kStart + 10s - 1ns));
  EXPECT_TRUE(deadline.passed(kStart + 10s));
  EXPECT_TRUE(deadline.passed(kStart + 11s));  // a loaded machine wakes late
}

TEST(Deadline, StartsAnewWhereTheProcessWasStopped) {
  Deadline deadline(kStart, kStart + 10s);
  EXPECT_FALSE(deadline.passed(kStart + 11s + 1ns));
  EXPECT_EQ(deadline.end(), kStart + 21s + 1ns);
  EXPECT_FALSE(deadline.passed(kStart + 21s));
  EXPECT_TRUE(deadline.passed(kStart + 21s + 1ns));
}

TEST(Deadline, TimeInALineIsNoSleep) {
  Deadline deadline(kStart, kStart + 10s);
  deadline.begin(kStart + 30s, {});
  EXPECT_TRUE(deadline.passed(kStart + 30s));
  EXPECT_TRUE(deadline.passed(kStart + 60s));
  EXPECT_EQ(deadline.full_time(), 10s);

  Deadline in_time(kStart, kStart + 10s);
  in_time.begin(kStart + 9s, {});
  EXPECT_FALSE(in_time.passed(kStart + 12s)) << "it was stopped in its own wait";
  EXPECT_EQ(in_time.stopped_at(), kStart + 12s);
}

TEST(Deadline, WhoStoodInLineWhenTheProcessWasStoppedStartsAnewToo) {
  Deadline deadline(kStart, kStart + 10s);
  deadline.begin(kStart + 30s, kStart + 29s);
  EXPECT_FALSE(deadline.passed(kStart + 40s - 1ns));
  EXPECT_TRUE(deadline.passed(kStart + 40s));

  Deadline younger_than_the_stop(kStart, kStart + 10s);
  younger_than_the_stop.begin(kStart + 30s, kStart - 1s);
  EXPECT_TRUE(younger_than_the_stop.passed(kStart + 30s));
}

TEST(Deadline, OneInThePastHasNoTime) {
  for (const auto end : {kStart, kStart - 1h, Deadline::TimePoint::min()}) {
    Deadline deadline(kStart, end);
    EXPECT_TRUE(deadline.passed(kStart));
    EXPECT_TRUE(deadline.passed(kStart + 5s));
    EXPECT_EQ(deadline.poll_timeout_ms(kStart), 0);
  }
}

TEST(Deadline, PollTimeoutIsRoundedUpAndBounded) {
  EXPECT_EQ(Deadline(kStart, kStart + 1ns).poll_timeout_ms(kStart), 1);
  EXPECT_EQ(Deadline(kStart, kStart + 2ms).poll_timeout_ms(kStart), 2);
  EXPECT_EQ(Deadline(kStart, kStart + 2ms).poll_timeout_ms(kStart + 1ms), 1);
  EXPECT_EQ(Deadline(kStart, Deadline::TimePoint::max()).poll_timeout_ms(kStart), 3'600'000);
}

}  // namespace
}  // namespace ddp::base
