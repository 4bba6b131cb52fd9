#include "launcher/output/equal_lines.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using TimePoint = EqualLines::TimePoint;

std::string text_of(const std::vector<EqualLines::Line>& lines) {
  std::string out;
  for (const auto& line : lines) {
    for (const int rank : line.ranks) out += std::to_string(rank);
    out += ":" + line.text + " ";
  }
  return out;
}

EqualLines of_workers(int count) {
  EqualLines lines;
  lines.set_workers(count);
  return lines;
}

TEST(EqualLines, ALineOfAllWorkersIsOneAndNeedNotWait) {
  auto lines = of_workers(3);
  for (const int rank : {2, 0, 1}) {
    EXPECT_EQ(text_of(lines.take_due(TimePoint())), "");
    lines.add(rank, 1, "hello", TimePoint());
  }
  EXPECT_EQ(text_of(lines.take_due(TimePoint())), "012:hello ");
  EXPECT_FALSE(lines.next_deadline());
}

TEST(EqualLines, WaitsForTheOthersButNotForEver) {
  auto lines = of_workers(3);
  lines.add(0, 1, "hello", TimePoint());
  lines.add(1, 1, "hello", TimePoint() + 50ms);
  ASSERT_EQ(lines.next_deadline(), TimePoint() + EqualLines::kHold);
  EXPECT_EQ(text_of(lines.take_due(TimePoint() + EqualLines::kHold - 1ms)), "");
  EXPECT_EQ(text_of(lines.take_due(TimePoint() + EqualLines::kHold)), "01:hello ");
  lines.add(2, 1, "hello", TimePoint() + EqualLines::kHold);
  EXPECT_EQ(text_of(lines.take_all()), "2:hello ");
}

TEST(EqualLines, NeverPutsAWorkersLinesOutOfTheirOrder) {
  auto lines = of_workers(2);
  for (const auto* text : {"a", "b"}) lines.add(0, 1, text, TimePoint());
  for (const auto* text : {"b", "a"}) lines.add(1, 1, text, TimePoint());
  EXPECT_EQ(text_of(lines.take_all()), "0:a 01:b 1:a ");
}

TEST(EqualLines, TheSameLineTwiceIsTwo) {
  auto lines = of_workers(2);
  for (int i = 0; i < 2; ++i) lines.add(0, 1, "a", TimePoint());
  for (int i = 0; i < 2; ++i) lines.add(1, 1, "a", TimePoint());
  EXPECT_EQ(text_of(lines.take_all()), "01:a 01:a ");
}

TEST(EqualLines, StdoutAndStderrAreNotEqual) {
  auto lines = of_workers(2);
  lines.add(0, 1, "a", TimePoint());
  lines.add(1, 2, "a", TimePoint());
  EXPECT_EQ(text_of(lines.take_all()), "0:a 1:a ");
}

TEST(EqualLines, TooMuchIsNotHeld) {
  auto lines = of_workers(2);
  std::size_t left = 0;
  for (int i = 0; i < 5000; ++i) {
    lines.add(0, 1, std::to_string(i) + std::string(1000, '.'), TimePoint());
    left += lines.take_due(TimePoint()).size();
  }
  EXPECT_GT(left, 5000 - EqualLines::kHeldBytesMax / 1000);
  EXPECT_EQ(left + lines.take_all().size(), 5000u);
}

TEST(EqualLines, LinesThatHaveLeftTakeNoRoom) {
  auto lines = of_workers(2);
  const std::string text(10'000, '.');
  for (std::size_t added = 0; added < 3 * EqualLines::kHeldBytesMax; added += text.size()) {
    lines.add(0, 1, text, TimePoint());
    ASSERT_TRUE(lines.take_due(TimePoint()).empty()) << "after " << added << " bytes no line is held any more";
    lines.add(1, 1, text, TimePoint());
    ASSERT_EQ(text_of(lines.take_due(TimePoint())), "01:" + text + " ");
  }
}

// Whatever is printed when: each worker's lines come out complete and in its order.
TEST(EqualLines, LosesNothingWhateverTheMix) {
  std::mt19937_64 random(11);
  auto lines = of_workers(4);
  std::string sent[4], got[4];
  std::size_t printed = 0;
  const auto take = [&](const std::vector<EqualLines::Line>& due) {
    for (const auto& line : due) {
      ++printed;
      for (const int rank : line.ranks) got[rank] += line.text;
    }
  };
  TimePoint now;
  for (int i = 0; i < 20'000; ++i) {
    now += std::chrono::milliseconds(random() % 20);
    const int rank = static_cast<int>(random() % 4);
    const std::string text(1, static_cast<char>('a' + random() % 5));
    sent[rank] += text;
    lines.add(rank, 1, text, now);
    take(lines.take_due(now));
  }
  take(lines.take_all());
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(got[rank], sent[rank]);
  EXPECT_LT(printed, 20'000u);
}

}  // namespace
}  // namespace ddp::launcher
