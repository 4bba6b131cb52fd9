#include "worker_runtime/core/failure/call_outcome.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace ddp::core {
namespace {

using Kind = CallOutcome::Kind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kPresentCall = 9;

LocalRank arrived(int rank) { return {.rank = rank, .has_arrived = true}; }

LocalRank missing(int rank) { return {.rank = rank}; }

LocalRank ended(int rank) { return {.rank = rank, .is_gone = true, .has_ended = true}; }

LocalRank departed(int rank, Presence presence) { return {.rank = rank, .is_gone = true, .presence = presence}; }

LocalRank gave_up_for(int rank, std::size_t index) {
  LocalRank gave_up = departed(rank, Presence::gave_up);
  gave_up.gave_up_for = index;
  return gave_up;
}

NotedRank noted(Trouble trouble, Presence presence, std::uint64_t calls) { return {trouble, presence, calls}; }

RanksInPhase phase_of(std::vector<LocalRank> here, std::vector<NotedRank> others = {}) {
  return {.own = 0, .here = std::move(here), .noted = std::move(others), .call = kPresentCall};
}

void expect_lost(const std::optional<CallOutcome>& outcome, const std::vector<int>& ranks) {
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->kind, Kind::lost);
  EXPECT_EQ(outcome->ranks, ranks);
}

TEST(CallOutcome, MissingRankIsNoFailureBeforeTheDeadline) {
  EXPECT_FALSE(failure_of(phase_of({arrived(0), missing(1)})));
}

TEST(CallOutcome, GoneRankThatHasNotArrivedIsLost) {
  expect_lost(failure_of(phase_of({arrived(0), ended(3), departed(5, Presence::left)})), {3, 5});
}

TEST(CallOutcome, RankThatArrivedAndThenEndedIsNotLost) {
  LocalRank done = ended(1);
  done.has_arrived = true;
  EXPECT_FALSE(failure_of(phase_of({arrived(0), done, missing(2)})));
}

TEST(CallOutcome, InterruptComesBeforeLostRanks) {
  RanksInPhase ranks = phase_of({arrived(0), ended(1)});
  ranks.is_interrupted = true;
  EXPECT_EQ(failure_of(ranks)->kind, Kind::interrupted);
}

TEST(CallOutcome, CauseOfAGivingUpRankIsNamedInstead) {
  expect_lost(failure_of(phase_of({arrived(0), gave_up_for(1, 2), departed(2, Presence::aborted)})), {2});
  expect_lost(failure_of(phase_of({arrived(0), gave_up_for(1, 2), gave_up_for(2, 3), ended(3)})), {3});
}

TEST(CallOutcome, RankThatGaveUpForThisOneIsNamedItself) {
  expect_lost(failure_of(phase_of({arrived(0), gave_up_for(1, 0)})), {1});
}

TEST(CallOutcome, RanksThatGaveUpForEachOtherEndTheSearch) {
  expect_lost(failure_of(phase_of({arrived(0), gave_up_for(1, 2), gave_up_for(2, 1)})), {1, 2});
  expect_lost(failure_of(phase_of({arrived(0), gave_up_for(1, 77)})), {1});
}

TEST(CallOutcome, AbortAfterArrivalIsTheCauseOfRanksThatGaveUp) {
  LocalRank aborted = departed(1, Presence::aborted);
  aborted.has_arrived = true;
  expect_lost(failure_of(phase_of({arrived(0), aborted, departed(2, Presence::gave_up)})), {1});
  expect_lost(failure_of(phase_of({arrived(0), aborted, ended(2)})), {2});
}

TEST(CallOutcome, RankOfAnotherHostIsLostInLaterCallsOnly) {
  const auto notes_with = [](std::uint64_t calls) {
    return std::vector<NotedRank>{{}, {}, noted(Trouble::lost, Presence::left, calls)};
  };
  expect_lost(failure_of(phase_of({arrived(0), arrived(1)}, notes_with(kPresentCall - 1))), {2});
  EXPECT_FALSE(failure_of(phase_of({arrived(0), arrived(1)}, notes_with(kPresentCall))));
}

TEST(CallOutcome, CauseOnAnotherHostIsNamedForRanksThatGaveUp) {
  const std::vector<NotedRank> notes{{},
                                     {},
                                     noted(Trouble::lost, Presence::here, kPresentCall + 1),
                                     noted(Trouble::lost, Presence::gave_up, kPresentCall - 1)};
  expect_lost(failure_of(phase_of({arrived(0), departed(1, Presence::gave_up)}, notes)), {2});
}

TEST(CallOutcome, RanksThatGaveUpForMissingRanksAreATimeout) {
  const std::vector<NotedRank> notes{
      {}, {}, noted(Trouble::missing, Presence::here, 3), noted(Trouble::lost, Presence::gave_up, kPresentCall - 1)};
  const auto outcome = failure_of(phase_of({arrived(0), arrived(1)}, notes));
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->kind, Kind::timed_out);
  EXPECT_THAT(outcome->ranks, ElementsAre(2));
}

TEST(CallOutcome, MissingRanksAloneAreNoFailure) {
  const std::vector<NotedRank> notes{{}, noted(Trouble::missing, Presence::here, 3)};
  EXPECT_FALSE(failure_of(phase_of({arrived(0)}, notes)));
  EXPECT_THAT(noted_missing(notes), ElementsAre(1));
  EXPECT_THAT(noted_missing({}), IsEmpty());
}

TEST(CallOutcome, RankKnownToBeLostIsNamedUnlessItHasACause) {
  expect_lost(failure_without(phase_of({arrived(0), missing(4)}), 4), {4});
  expect_lost(failure_without(phase_of({arrived(0), missing(4)}), 7), {7});
  expect_lost(failure_without(phase_of({arrived(0), missing(4), ended(5)}), 4), {5});
  const std::vector<NotedRank> notes{{}, {}, {}, noted(Trouble::lost, Presence::aborted, kPresentCall + 1)};
  expect_lost(failure_without(phase_of({arrived(0)}, notes), 1), {3});
}

TEST(CallOutcome, RankThatGaveUpAfterItsArrivalSpoilsThePhase) {
  LocalRank ahead = departed(1, Presence::aborted);
  ahead.has_arrived = true;
  expect_lost(failure_ahead(phase_of({missing(0), ahead, missing(2)})), {1});
  EXPECT_FALSE(failure_ahead(phase_of({missing(0), departed(1, Presence::aborted), arrived(2)})))
      << "the wait for the phase shows that";
}

TEST(CallOutcome, RankThatEndedAfterItsArrivalSpoilsNothing) {
  LocalRank done = ended(1);
  done.has_arrived = true;
  EXPECT_FALSE(failure_ahead(phase_of({missing(0), done})));
}

TEST(CallOutcome, CauseOfASpoiledPhaseIsNamed) {
  LocalRank ahead = departed(2, Presence::gave_up);
  ahead.has_arrived = true;
  expect_lost(failure_ahead(phase_of({missing(0), departed(1, Presence::aborted), ahead})), {1});
  expect_lost(failure_ahead(phase_of({missing(0), ended(1), ahead})), {1});
}

TEST(CallOutcome, RankThatGaveUpItselfIsInterrupted) {
  EXPECT_EQ(failure_ahead(phase_of({departed(0, Presence::aborted), arrived(1)}))->kind, Kind::interrupted);
}

}  // namespace
}  // namespace ddp::core
