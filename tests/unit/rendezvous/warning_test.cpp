#include "base/warning.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/line_limit.hpp"

namespace ddp::base {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr WarningTally::TimePoint kStart{1h};

Warning from(int host, const std::string& reason = "another token") {
  const auto source = "10.0.0." + std::to_string(host);
  return {reason, source, "a connection from " + source + " ended: " + reason};
}

TEST(Warnings, FirstIsALineAndThoseOfTheNextMinuteAreOne) {
  WarningTally tally;
  EXPECT_EQ(tally.take(from(1), kStart).value().text, "a connection from 10.0.0.1 ended: another token");
  EXPECT_EQ(tally.next_deadline(), std::nullopt);
  for (int i = 0; i < 5'000; ++i) EXPECT_FALSE(tally.take(from(i % 200), kStart + 1s));
  EXPECT_EQ(tally.next_deadline(), kStart + 60s);
  EXPECT_THAT(tally.tick(kStart + 59s), IsEmpty());
  EXPECT_THAT(tally.tick(kStart + 60s),
              ElementsAre("another token: 5000 more within a minute, the last from 10.0.0.199"));
  EXPECT_THAT(tally.tick(kStart + 60s), IsEmpty());
  EXPECT_EQ(tally.next_deadline(), std::nullopt);
}

TEST(Warnings, FloodIsOneLineAMinuteForAsLongAsItLasts) {
  WarningTally tally;
  int lines = 0;
  for (auto now = kStart; now < kStart + 1h; now += 100ms) {
    lines += tally.take(from(1), now) ? 1 : 0;
    lines += static_cast<int>(tally.tick(now).size());
  }
  EXPECT_EQ(lines, 60);
  EXPECT_THAT(tally.counts(), ElementsAre(Pair("another token", 36'000u)));
}

TEST(Warnings, ReasonIsALineAgainAfterAQuietMinute) {
  WarningTally tally;
  EXPECT_TRUE(tally.take(from(1), kStart));
  EXPECT_TRUE(tally.take(from(2), kStart + 60s));
  EXPECT_FALSE(tally.take(from(3), kStart + 61s));
}

TEST(Warnings, OneReasonDoesNotHideAnother) {
  WarningTally tally;
  EXPECT_TRUE(tally.take(from(1, "no token"), kStart));
  EXPECT_TRUE(tally.take(from(1, "another token"), kStart));
  EXPECT_FALSE(tally.take(from(1, "no token"), kStart));
  EXPECT_THAT(tally.counts(), ElementsAre(Pair("another token", 1u), Pair("no token", 2u)));
  EXPECT_THAT(tally.tick(kStart + 60s), ElementsAre("no token: 1 more within a minute, the last from 10.0.0.1"));
}

// The event loop may be late, or the process stopped.
TEST(Warnings, LateTickLosesNoCount) {
  WarningTally tally;
  EXPECT_TRUE(tally.take(from(1), kStart));
  EXPECT_FALSE(tally.take(from(2), kStart + 1s));
  EXPECT_FALSE(tally.take(from(3), kStart + 3600s));
  EXPECT_THAT(tally.tick(kStart + 3600s), ElementsAre("another token: 2 more within a minute, the last from 10.0.0.3"));
  EXPECT_FALSE(tally.take(from(4), kStart + 3601s));
}

TEST(LineLimit, ABurstGoesThroughAndThenOneInEachPeriod) {
  LineLimit limit(3, 2s);
  auto now = kStart;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.take("a", now), "a");
  EXPECT_EQ(limit.take("b", now), std::nullopt);
  EXPECT_EQ(limit.take("c", now + 1999ms), std::nullopt);
  EXPECT_EQ(limit.take("d", now += 2s), "(2 lines were left out here) d");
  EXPECT_EQ(limit.take("e", now), std::nullopt);
  now += 1h;
  EXPECT_EQ(limit.take("f", now), "(1 line was left out here) f");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(limit.take("g", now), "g");
  EXPECT_EQ(limit.take("g", now), std::nullopt) << "however long it was quiet";
}

TEST(LineLimit, TheNewestLineOfAFloodFollows) {
  LineLimit limit(1, 2s);
  EXPECT_EQ(limit.take("a", kStart), "a");
  EXPECT_EQ(limit.next_deadline(), std::nullopt);
  for (const auto* line : {"b", "c", "d"}) EXPECT_EQ(limit.take(line, kStart + 1s), std::nullopt);
  EXPECT_EQ(limit.next_deadline(), kStart + 2s);
  EXPECT_THAT(limit.tick(kStart + 1999ms), IsEmpty());
  EXPECT_THAT(limit.tick(kStart + 2s), ElementsAre("(2 lines were left out here) d"));
  EXPECT_THAT(limit.tick(kStart + 2s), IsEmpty());
  EXPECT_EQ(limit.next_deadline(), std::nullopt);
  EXPECT_EQ(limit.take("e", kStart + 3s), std::nullopt) << "that line has taken its period";
  EXPECT_THAT(limit.tick(kStart + 4s), ElementsAre("e"));
}

TEST(LineLimit, AFloodIsALineInEachPeriod) {
  LineLimit limit(100, 2s);
  int lines = 0;
  for (int i = 0; i < 60'000; ++i) lines += limit.take("x", kStart + i * 1ms).has_value() ? 1 : 0;
  EXPECT_EQ(lines, 100 + 29);
}

}  // namespace
}  // namespace ddp::base
