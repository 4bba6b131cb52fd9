#include "launcher/worker_group/stop_vote.hpp"

#include <gtest/gtest.h>

namespace ddp::launcher {
namespace {

using Step = StopVote::Step;
using Answer = StopVote::Answer;

const std::vector<Voter> kBothTakePart{{0, true}, {1, true}};
const std::vector<Voter> kOneTakesNoPart{{0, true}, {1, false}};

Step asks(std::vector<int> local_ranks) { return {std::move(local_ranks), {}}; }
Step answers(std::optional<std::uint64_t> call) { return {{}, Answer{call}}; }

TEST(StopVote, AnswersWithTheGreatestOnceAllHaveAnswered) {
  StopVote vote;
  EXPECT_EQ(vote.next(kBothTakePart), Step{}) << "nobody asked";
  vote.ask(false);
  EXPECT_EQ(vote.next(kBothTakePart), asks({0, 1}));
  vote.answer(0, 7);
  EXPECT_EQ(vote.next(kBothTakePart), Step{});
  vote.answer(1, 6);
  EXPECT_EQ(vote.next(kBothTakePart), answers(7));
  EXPECT_EQ(vote.next(kBothTakePart), Step{}) << "once";
}

TEST(StopVote, AskedAgainAsksAgain) {
  StopVote vote;
  vote.ask(false);
  EXPECT_EQ(vote.next({{0, true}}), asks({0}));
  vote.ask(false);
  EXPECT_EQ(vote.next({{0, true}}), Step{}) << "it is asked already";
  vote.answer(0, 3);
  EXPECT_EQ(vote.next({{0, true}}), answers(3));
  vote.ask(false);
  EXPECT_EQ(vote.next({{0, true}}), asks({0})) << "it may have given up its wait, and be further";
  vote.answer(0, 5);
  EXPECT_EQ(vote.next({{0, true}}), answers(5));
}

TEST(StopVote, WhereOneTakesNoPartTheAnswerComesAtOnceAndNobodyIsAsked) {
  StopVote vote;
  vote.ask(false);
  EXPECT_EQ(vote.next(kOneTakesNoPart), answers({}));
  EXPECT_EQ(vote.next(kBothTakePart), Step{});
}

TEST(StopVote, WhoTakesNoPartAnyMoreEndsTheWaiting) {
  StopVote vote;
  vote.ask(false);
  EXPECT_EQ(vote.next(kBothTakePart), asks({0, 1}));
  EXPECT_EQ(vote.next(kOneTakesNoPart), answers({}));
}

TEST(StopVote, AWarningIsAnsweredOnceAllTakePartAndNobodyIsAsked) {
  StopVote vote;
  vote.ask(true);
  EXPECT_EQ(vote.next(kOneTakesNoPart), Step{});
  EXPECT_EQ(vote.next(kBothTakePart), answers(0));
  EXPECT_EQ(vote.next(kBothTakePart), Step{});
  vote.ask(false);
  EXPECT_EQ(vote.next(kBothTakePart), asks({0, 1}));
}

TEST(StopVote, TheStopThatFollowsAWarningDoesNotWait) {
  StopVote vote;
  vote.ask(true);
  EXPECT_EQ(vote.next(kOneTakesNoPart), Step{});
  vote.ask(false);
  vote.ask(true);
  EXPECT_EQ(vote.next(kOneTakesNoPart), answers({}));
}

TEST(StopVote, WhoHasEndedIsNotWaitedForButWhatItSaidCounts) {
  StopVote vote;
  vote.ask(false);
  EXPECT_EQ(vote.next(kBothTakePart), asks({0, 1}));
  vote.answer(0, 9);
  EXPECT_EQ(vote.next({{1, true}}), Step{});
  vote.answer(1, 8);
  EXPECT_EQ(vote.next({{1, true}}), answers(9));
}

TEST(StopVote, WhereAllHaveEndedAnyStepWillDo) {
  StopVote vote;
  vote.ask(false);
  EXPECT_EQ(vote.next({}), answers(1));
}

TEST(StopVote, EachRoundHasItsOwn) {
  StopVote vote;
  vote.ask(false);
  EXPECT_EQ(vote.next({{0, true}}), asks({0}));
  vote.answer(0, 50);
  vote.begin_round();
  EXPECT_EQ(vote.next({{0, true}}), Step{});
  vote.ask(false);
  EXPECT_EQ(vote.next({{0, true}}), asks({0}));
  vote.answer(0, 2);
  EXPECT_EQ(vote.next({{0, true}}), answers(2));
}

}  // namespace
}  // namespace ddp::launcher
