#include "worker_runtime/agent_link/progress_news.hpp"

#include <gtest/gtest.h>

namespace ddp::agent_link {
namespace {

using namespace std::chrono_literals;
using worker_link::LinkProgress;
using Message = ProgressNews::Message;

const ProgressNews::Clock::time_point kStart{1000s};

TEST(ProgressNews, NothingIsSaidOutsideARound) {
  ProgressNews news;
  EXPECT_EQ(news.take({true, 1, 2}, kStart), Message());
}

TEST(ProgressNews, WhatIsNewInTheRoundIsSaidAtOnce) {
  ProgressNews news;
  news.begin_round(3);
  EXPECT_EQ(news.take({}, kStart), Message()) << "there is nothing to say";
  EXPECT_EQ(news.take({false, {}, 0}, kStart), (LinkProgress{3, false, {}, 0}));
  EXPECT_EQ(news.take({false, 0, 0}, kStart), (LinkProgress{3, false, 0, 0}));
  EXPECT_EQ(news.take({false, 0, 0}, kStart), Message()) << "it was said";
  EXPECT_EQ(news.take({true, 0, 0}, kStart), (LinkProgress{3, true, 0, 0}));
  EXPECT_EQ(news.take({true, 1, 0}, kStart), (LinkProgress{3, true, 1, 0})) << "the first commit of the round itself";
  EXPECT_EQ(news.take({true, 2, 0}, kStart), Message());
  EXPECT_EQ(news.take({true, 2, 100}, kStart), (LinkProgress{3, true, 2, 100})) << "with all that is known by now";
  EXPECT_EQ(news.take({true, 2, 200}, kStart), Message());
}

TEST(ProgressNews, WhatFollowsIsSaidOnceASecondAndNothingIsLost) {
  ProgressNews news;
  news.begin_round(3);
  std::uint64_t commits = 0;
  auto now = kStart;
  news.take({true, commits++, {}}, now);
  news.take({true, commits++, {}}, now);
  int messages = 0;
  for (; now < kStart + 10s; now += 10ms) {
    const auto message = news.take({true, commits, {}}, now);
    if (message) {
      EXPECT_EQ(message->commits, commits);
      ++messages;
    }
    ++commits;
  }
  EXPECT_EQ(messages, 9);
  EXPECT_EQ(news.take({true, commits, {}}, now), (LinkProgress{3, true, commits, {}}));
}

TEST(ProgressNews, ANewRoundIsToldWhatIsKnownAtOnce) {
  ProgressNews news;
  news.begin_round(3);
  for (std::uint64_t i = 0; i < 5; ++i) news.take({true, i, i}, kStart);
  news.begin_round(4);
  EXPECT_EQ(news.take({false, 4, 4}, kStart), (LinkProgress{4, false, 4, 4}));
  EXPECT_EQ(news.take({true, 5, 4}, kStart), (LinkProgress{4, true, 5, 4}));
  EXPECT_EQ(news.take({true, 6, 4}, kStart), Message());
}

}  // namespace
}  // namespace ddp::agent_link
