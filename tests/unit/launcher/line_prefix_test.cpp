#include "launcher/output/line_prefix.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace ddp::launcher {
namespace {

const PrefixFacts kFacts{"default", "11", "3", "gpu17"};

TEST(LinePrefix, ReplacesTheVariablesOfTheTemplate) {
  const struct {
    const char* text_template;
    const char* want;
  } cases[] = {
      {kTeePrefix, "[default3]:"},
      {kShortPrefix, "[11] "},
      {"${hostname}/$rank: ", "gpu17/11: "},
      {"", ""},
      {"$$5 $rank_ ${rank $ ${unknown}$", "$5 $rank_ ${rank $ ${unknown}$"},
  };
  for (const auto& c : cases) EXPECT_EQ(LinePrefix(c.text_template, kFacts).text(), c.want) << c.text_template;
  EXPECT_EQ(LinePrefix().text(), "");
}

TEST(LinePrefix, KnowsTheTime) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  const timespec now{1'764'000'000, 7'000'000};
  EXPECT_EQ(LinePrefix("${time} [$rank] ", kFacts).text(now), "2025-11-24 16:00:00.007 [11] ");
}

TEST(RankRanges, JoinsNeighbours) {
  EXPECT_EQ(rank_ranges({5}), "5");
  EXPECT_EQ(rank_ranges({0, 1}), "0,1");
  EXPECT_EQ(rank_ranges({0, 1, 2, 5, 7, 8, 9}), "0-2,5,7-9");
}

}  // namespace
}  // namespace ddp::launcher
