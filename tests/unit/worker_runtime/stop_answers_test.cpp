#include "worker_runtime/agent_link/stop_answers.hpp"

#include <gtest/gtest.h>

namespace {

using ddp::agent_link::StopAnswers;
using ddp::worker_link::LinkPrepareStop;
using ddp::worker_link::LinkStopAt;
using std::chrono::milliseconds;

LinkPrepareStop question_of(std::uint32_t round) {
  LinkPrepareStop question;
  question.round = round;
  return question;
}

TEST(StopAnswers, QuestionBeforeItsRoundIsAnsweredInTheRound) {
  StopAnswers answers;
  answers.take(question_of(3));
  EXPECT_FALSE(answers.answer());
  EXPECT_TRUE(answers.begin_round(2));
  EXPECT_FALSE(answers.answer());
  EXPECT_TRUE(answers.begin_round(3));
  ASSERT_TRUE(answers.answer());
  EXPECT_EQ(answers.answer()->round, 3u);
  EXPECT_EQ(answers.answer()->call, 1u);
}

TEST(StopAnswers, SecondGroupOfARoundBeginsNothing) {
  StopAnswers answers;
  EXPECT_TRUE(answers.begin_round(1));
  EXPECT_FALSE(answers.ask(milliseconds(0)));
  EXPECT_FALSE(answers.begin_round(1));
  answers.take(question_of(1));
  EXPECT_EQ(answers.answer()->call, 2u) << "calls still count from the first group";
}

TEST(StopAnswers, DecisionOfAnotherRoundStopsNothing) {
  StopAnswers answers;
  answers.begin_round(2);
  answers.take(question_of(2));
  ASSERT_TRUE(answers.answer());
  LinkStopAt decision;
  decision.round = 1;
  decision.call = 1;
  answers.take(decision);
  EXPECT_FALSE(answers.ask(milliseconds(0)));
}

TEST(StopAnswers, OnlyTheFirstStopOfARoundIsNews) {
  StopAnswers answers;
  answers.begin_round(1);
  EXPECT_TRUE(answers.is_first_stop());
  EXPECT_FALSE(answers.is_first_stop());
  answers.begin_round(2);
  EXPECT_TRUE(answers.is_first_stop());
}

}  // namespace
