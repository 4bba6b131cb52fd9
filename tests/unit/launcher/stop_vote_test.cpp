#include "launcher/worker_group/stop_vote.hpp"

#include <gtest/gtest.h>

namespace ddp::launcher {
namespace {

using Step = StopVote::Next;
using Answer = StopVote::Answer;

const std::vector<Voter> kBothTakePart{{0, true}, {1, true}};
const std::vector<Voter> kOneTakesNoPart{{0, true}, {1, false}};

Step asks(std::vector<int> local_ranks) { return {std::move(local_ranks), {}}; }
Step answers(std::optional<std::uint64_t> call) { return {{}, Answer{call}}; }

class StopVoteOfTwo : public ::testing::Test {
 protected:
  void ask(bool is_warning) { vote_.ask(is_warning, workers_); }
  void answer(std::size_t local_rank, std::uint64_t call) { workers_.at(local_rank).stop_call = call; }
  Step next(const std::vector<Voter>& running) { return vote_.next(running, workers_); }
  void begin_round() {
    vote_.begin_round();
    workers_ = Workers(2);
  }

 private:
  StopVote vote_;
  Workers workers_ = Workers(2);
};

TEST_F(StopVoteOfTwo, AnswersWithTheGreatestOnceAllHaveAnswered) {
  EXPECT_EQ(next(kBothTakePart), Step{}) << "nobody asked";
  ask(false);
  EXPECT_EQ(next(kBothTakePart), asks({0, 1}));
  answer(0, 7);
  EXPECT_EQ(next(kBothTakePart), Step{});
  answer(1, 6);
  EXPECT_EQ(next(kBothTakePart), answers(7));
  EXPECT_EQ(next(kBothTakePart), Step{}) << "once";
}

TEST_F(StopVoteOfTwo, AskedAgainAsksAgain) {
  ask(false);
  EXPECT_EQ(next({{0, true}}), asks({0}));
  ask(false);
  EXPECT_EQ(next({{0, true}}), Step{}) << "it is asked already";
  answer(0, 3);
  EXPECT_EQ(next({{0, true}}), answers(3));
  ask(false);
  EXPECT_EQ(next({{0, true}}), asks({0})) << "it may have given up its wait, and be further";
  answer(0, 5);
  EXPECT_EQ(next({{0, true}}), answers(5));
}

TEST_F(StopVoteOfTwo, WhereOneTakesNoPartTheAnswerComesAtOnceAndNobodyIsAsked) {
  ask(false);
  EXPECT_EQ(next(kOneTakesNoPart), answers({}));
  EXPECT_EQ(next(kBothTakePart), Step{});
}

TEST_F(StopVoteOfTwo, WhoTakesNoPartAnyMoreEndsTheWaiting) {
  ask(false);
  EXPECT_EQ(next(kBothTakePart), asks({0, 1}));
  EXPECT_EQ(next(kOneTakesNoPart), answers({}));
}

TEST_F(StopVoteOfTwo, AWarningIsAnsweredOnceAllTakePartAndNobodyIsAsked) {
  ask(true);
  EXPECT_EQ(next(kOneTakesNoPart), Step{});
  EXPECT_EQ(next(kBothTakePart), answers(0));
  EXPECT_EQ(next(kBothTakePart), Step{});
  ask(false);
  EXPECT_EQ(next(kBothTakePart), asks({0, 1}));
}

TEST_F(StopVoteOfTwo, TheStopThatFollowsAWarningDoesNotWait) {
  ask(true);
  EXPECT_EQ(next(kOneTakesNoPart), Step{});
  ask(false);
  ask(true);
  EXPECT_EQ(next(kOneTakesNoPart), answers({}));
}

TEST_F(StopVoteOfTwo, WhoHasEndedIsNotWaitedForButWhatItSaidCounts) {
  ask(false);
  EXPECT_EQ(next(kBothTakePart), asks({0, 1}));
  answer(0, 9);
  EXPECT_EQ(next({{1, true}}), Step{});
  answer(1, 8);
  EXPECT_EQ(next({{1, true}}), answers(9));
}

TEST_F(StopVoteOfTwo, WhereAllHaveEndedAnyStepWillDo) {
  ask(false);
  EXPECT_EQ(next({}), answers(1));
}

TEST_F(StopVoteOfTwo, EachRoundHasItsOwn) {
  ask(false);
  EXPECT_EQ(next({{0, true}}), asks({0}));
  answer(0, 50);
  begin_round();
  EXPECT_EQ(next({{0, true}}), Step{});
  ask(false);
  EXPECT_EQ(next({{0, true}}), asks({0}));
  answer(0, 2);
  EXPECT_EQ(next({{0, true}}), answers(2));
}

}  // namespace
}  // namespace ddp::launcher
