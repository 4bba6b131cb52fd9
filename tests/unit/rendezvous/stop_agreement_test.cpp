#include "rendezvous/membership/stop_agreement.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <variant>
#include <vector>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using Next = StopAgreement::Next;

const std::vector<int> kThreeNodes{0, 1, 2};
constexpr std::uint32_t kRoundOfStop = 4;

class StopAgreements : public ::testing::Test {
 protected:
  Next ask(bool is_urgent) { return agreement.ask(kThreeNodes, is_urgent, now); }
  Next answers(int rank, std::optional<std::uint64_t> call) { return agreement.answers(rank, call, now); }
  bool is_asked(int rank, bool is_warning) const {
    const auto message = agreement.message_for(rank, kRoundOfStop, 15);
    const auto* prepare = message ? std::get_if<PrepareStop>(&*message) : nullptr;
    return prepare != nullptr && *prepare == PrepareStop{kRoundOfStop, is_warning};
  }

  StopAgreement agreement;
  StopAgreement::TimePoint now{1h};
};

TEST_F(StopAgreements, GreatestStepIsAgreedOnceAllHaveAnswered) {
  EXPECT_EQ(ask(true), Next::tell_all);
  for (const int rank : kThreeNodes) EXPECT_TRUE(is_asked(rank, false));
  EXPECT_EQ(answers(0, 5), Next::wait);
  EXPECT_EQ(answers(2, 9), Next::wait);
  EXPECT_FALSE(agreement.message_for(2, kRoundOfStop, 15)) << "it has answered";
  EXPECT_EQ(agreement.call(), std::nullopt);
  EXPECT_EQ(answers(1, 7), Next::tell_all);
  EXPECT_EQ(agreement.call(), 9u);
  for (const int rank : kThreeNodes) {
    const auto message = agreement.message_for(rank, kRoundOfStop, 15);
    EXPECT_EQ(std::get<StopAt>(message.value()), (StopAt{kRoundOfStop, 9, 15}));
  }
  EXPECT_EQ(answers(1, 11), Next::wait) << "too late";
  EXPECT_EQ(agreement.call(), 9u);
}

TEST_F(StopAgreements, WarningAsksForStepsOnceAllTakePart) {
  EXPECT_EQ(ask(false), Next::tell_all);
  EXPECT_TRUE(is_asked(1, true));
  EXPECT_EQ(answers(0, 0), Next::wait);
  EXPECT_EQ(answers(1, {}), Next::wait) << "a node that takes no part yet is waited for";
  EXPECT_EQ(answers(1, 0), Next::wait);
  EXPECT_EQ(agreement.deadline(), std::nullopt) << "workers may take long to take part";
  EXPECT_EQ(answers(2, 0), Next::tell_all);
  EXPECT_TRUE(is_asked(0, false));
  EXPECT_NE(agreement.deadline(), std::nullopt) << "workers wait at their steps";
  EXPECT_EQ(answers(0, 3), Next::wait);
  EXPECT_EQ(answers(1, 3), Next::wait);
  EXPECT_EQ(answers(2, 4), Next::tell_all);
  EXPECT_EQ(agreement.call(), 4u);
  EXPECT_EQ(agreement.deadline(), std::nullopt);
}

TEST_F(StopAgreements, StopThatFollowsAWarningDoesNotWaitUntilAllTakePart) {
  EXPECT_EQ(ask(false), Next::tell_all);
  EXPECT_EQ(answers(0, 0), Next::wait);
  EXPECT_EQ(ask(true), Next::tell_all);
  for (const int rank : kThreeNodes) EXPECT_TRUE(is_asked(rank, false));
}

TEST_F(StopAgreements, NodeWithoutAStepEndsTheAgreement) {
  EXPECT_EQ(ask(true), Next::tell_all);
  EXPECT_EQ(answers(1, {}), Next::give_up);
  agreement.give_up();
  EXPECT_FALSE(agreement.has_begun());
  EXPECT_EQ(agreement.deadline(), std::nullopt);
  EXPECT_EQ(answers(0, 5), Next::wait) << "nobody asks any more";
  EXPECT_EQ(ask(true), Next::tell_all);
  EXPECT_TRUE(is_asked(1, false)) << "nothing of the first time is left";
}

TEST_F(StopAgreements, NodeWhoseWorkersHaveEndedIsNotWaitedFor) {
  EXPECT_EQ(ask(true), Next::tell_all);
  EXPECT_EQ(answers(0, 9), Next::wait);
  EXPECT_EQ(answers(1, 5), Next::wait);
  EXPECT_EQ(agreement.ends(0, now), Next::wait);
  EXPECT_EQ(agreement.ends(2, now), Next::tell_all);
  EXPECT_EQ(agreement.call(), 5u) << "the step of a node that has ended does not count";
}

TEST_F(StopAgreements, StepThatAnotherMembershipToldStays) {
  agreement.was_told(8);
  EXPECT_EQ(ask(true), Next::tell_all);
  for (const int rank : {0, 1}) EXPECT_EQ(answers(rank, 3), Next::wait);
  EXPECT_EQ(answers(2, 8), Next::tell_all);
  EXPECT_EQ(agreement.call(), 8u);
}

TEST_F(StopAgreements, WorkerBeyondTheStepThatWasToldBeforeEndsTheAgreement) {
  agreement.was_told(8);
  agreement.give_up();  // a warning that is passed over
  EXPECT_EQ(ask(true), Next::tell_all);
  for (const int rank : {0, 1}) EXPECT_EQ(answers(rank, 3), Next::wait);
  EXPECT_EQ(answers(2, 9), Next::give_up);
}

TEST_F(StopAgreements, AgreedStepIsToldAgainWhenTheJobIsToldToStop) {
  EXPECT_EQ(ask(false), Next::tell_all);
  for (const int rank : kThreeNodes) answers(rank, 0);
  for (const int rank : kThreeNodes) answers(rank, 6);
  EXPECT_EQ(ask(true), Next::tell_all);
  EXPECT_EQ(std::get<StopAt>(agreement.message_for(0, kRoundOfStop, 15).value()), (StopAt{kRoundOfStop, 6, 15}));
}

}  // namespace
}  // namespace ddp::rendezvous
