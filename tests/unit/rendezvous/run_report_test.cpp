#include "rendezvous/membership/run_report.hpp"

#include <gtest/gtest.h>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

class RunBookTest : public ::testing::Test {
 protected:
  RunBook::TimePoint at(std::chrono::milliseconds after) const { return RunBook::TimePoint() + after; }

  RunBook book_{RunBook::TimePoint()};
};

TEST_F(RunBookTest, TellsWhereTheTimeBetweenTwoRoundsWent) {
  book_.begun(0, "", 2, 8, at(100ms));
  book_.all_started(at(150ms));
  book_.first_step(at(400ms));
  book_.end_called(at(1390ms), at(1400ms));
  book_.all_ended(at(1430ms));
  book_.begun(1, "rank 3 was killed", 2, 8, at(1450ms));
  book_.all_started(at(1470ms));
  book_.first_step(at(1500ms));
  const auto report = book_.at(at(2000ms));

  RoundTimes first;
  first.nodes = 2;
  first.world_size = 8;
  first.rendezvous = 100ms;
  first.start = 50ms;
  first.first_step = 250ms;
  first.worked = 990ms;
  RoundTimes second = first;
  second.round = 1;
  second.why = "rank 3 was killed";
  second.detect = 10ms;
  second.stop = 30ms;
  second.rendezvous = 20ms;
  second.start = 20ms;
  second.first_step = 30ms;
  second.worked = 500ms;
  EXPECT_EQ(report.rounds, (std::vector{first, second}));
  EXPECT_EQ(report.total, 2000ms);
  EXPECT_EQ(report.worked, 1490ms);
}

TEST_F(RunBookTest, WhereNobodyTellsOfStepsWorkBeginsWithTheStart) {
  book_.begun(0, "", 1, 1, at(0ms));
  book_.all_started(at(10ms));
  book_.end_called(at(1000ms), at(1000ms));
  const auto round = book_.at(at(1100ms)).rounds.front();
  EXPECT_EQ(round.first_step, std::nullopt);
  EXPECT_EQ(round.worked, 990ms);
}

TEST_F(RunBookTest, ARoundThatNeverStartedDidNoWork) {
  book_.begun(0, "", 1, 1, at(0ms));
  book_.end_called(at(30ms), at(40ms));
  book_.all_ended(at(50ms));
  book_.begun(1, "rank 0 exited with code 1", 1, 1, at(60ms));
  const auto report = book_.at(at(1000ms));
  EXPECT_EQ(report.rounds.front().start, std::nullopt);
  EXPECT_EQ(report.worked, 0ms);
}

TEST_F(RunBookTest, ClocksOfOtherNodesDoNotMakeTimesNegative) {
  book_.begun(0, "", 1, 1, at(100ms));
  book_.all_started(at(110ms));
  book_.end_called(at(50ms), at(200ms));  // before its start
  book_.all_ended(at(210ms));
  book_.begun(1, "x", 1, 1, at(220ms));
  book_.all_started(at(230ms));
  book_.end_called(at(900ms), at(300ms));  // in the future
  const auto report = book_.at(at(310ms));
  EXPECT_EQ(report.rounds[0].worked, 0ms);
  EXPECT_EQ(report.rounds[1].worked, 70ms);
  EXPECT_EQ(report.rounds[1].detect, 90ms);
}

TEST_F(RunBookTest, WhatDoesNotFitIsPassedOver) {
  book_.end_called(at(1ms), at(1ms));
  book_.all_started(at(2ms));
  book_.first_step(at(3ms));
  book_.all_ended(at(4ms));
  EXPECT_TRUE(book_.at(at(5ms)).rounds.empty());
  book_.begun(0, "", 1, 1, at(10ms));
  book_.first_step(at(20ms));
  book_.first_step(at(30ms));
  EXPECT_EQ(book_.at(at(40ms)).rounds.front().worked, 20ms);
}

TEST_F(RunBookTest, KeepsTheNewestRoundsAndCountsAll) {
  for (std::uint32_t round = 0; round < 40; ++round) {
    const auto begin = std::chrono::milliseconds(round * 100);
    book_.begun(round, "again", 1, 1, at(begin));
    book_.all_started(at(begin));
    book_.end_called(at(begin + 50ms), at(begin + 50ms));
    book_.all_ended(at(begin + 60ms));
  }
  const auto report = book_.at(at(4000ms));
  ASSERT_EQ(report.rounds.size(), kRoundsReportedMax);
  EXPECT_EQ(report.rounds.front().round, 8u);
  EXPECT_EQ(report.rounds_count, 40);
  EXPECT_EQ(report.worked, 2000ms);
}

TEST_F(RunBookTest, GoodputCountsNeitherImportsNorStepsThatAreDoneAgain) {
  book_.begun(0, "", 1, 1, at(100ms));
  book_.all_started(at(150ms));
  book_.first_step(at(400ms));  // imports took 250 ms
  book_.end_called(at(1000ms), at(1000ms));
  book_.kept(at(800ms));
  book_.all_ended(at(1000ms));
  EXPECT_EQ(book_.at(at(1000ms)).useful, 600ms) << "no other round follows yet";
  book_.begun(1, "rank 0 was killed", 1, 1, at(1000ms));
  book_.all_started(at(1000ms));
  EXPECT_EQ(book_.at(at(1200ms)).useful, 400ms) << "no step of this round is done yet";
  book_.first_step(at(1200ms));
  const auto report = book_.at(at(2000ms));
  EXPECT_EQ(report.rounds[0].lost, 200ms);
  EXPECT_EQ(report.rounds[1].lost, std::nullopt);
  EXPECT_EQ(report.worked, 1400ms);
  EXPECT_EQ(report.useful, 1200ms);
  EXPECT_DOUBLE_EQ(report.goodput().value(), 0.6);
}

TEST_F(RunBookTest, ARoundThatKeptNothingIsDoneAgain) {
  book_.begun(0, "", 1, 1, at(0ms));
  book_.first_step(at(0ms));
  book_.end_called(at(1000ms), at(1000ms));
  book_.kept(std::nullopt);
  book_.begun(1, "rank 0 was killed", 1, 1, at(1000ms));
  book_.first_step(at(1000ms));
  const auto report = book_.at(at(1500ms));
  EXPECT_EQ(report.rounds[0].lost, 1000ms);
  EXPECT_EQ(report.useful, 500ms);
}

TEST_F(RunBookTest, GoodputIsUnknownWhereNobodyTellsOfSteps) {
  book_.begun(0, "", 1, 1, at(0ms));
  book_.all_started(at(0ms));
  EXPECT_FALSE(book_.at(at(1000ms)).goodput());
  EXPECT_FALSE(RunReport{}.goodput());
}

TEST_F(RunBookTest, GoodputIsUnknownWhereStepsWereLostAndNobodyTellsHowMany) {
  book_.begun(0, "", 1, 1, at(0ms));
  book_.first_step(at(0ms));
  EXPECT_TRUE(book_.at(at(100ms)).goodput());
  book_.end_called(at(1000ms), at(1000ms));
  book_.begun(1, "rank 0 was killed", 1, 1, at(1000ms));
  book_.first_step(at(1000ms));
  EXPECT_FALSE(book_.at(at(1500ms)).goodput());
}

}  // namespace
}  // namespace ddp::rendezvous
