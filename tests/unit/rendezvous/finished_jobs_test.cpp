#include "rendezvous/membership/finished_jobs.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

FinishJob verdict_of(int exit_code) {
  FinishJob verdict;
  verdict.exit_code = exit_code;
  return verdict;
}

Hello hello_of(const std::string& run_id, std::optional<RoundId> round = {}) {
  Hello hello;
  hello.run_id = run_id;
  if (round) hello.held = Held{*round, 0, 1, 0};
  hello.was_welcomed = round.has_value();
  return hello;
}

class FinishedJobsTest : public ::testing::Test {
 protected:
  // What is told to a node with this hello; -1: nothing.
  int code_for(const Hello& hello) {
    const auto* verdict = jobs.verdict_for(hello, now);
    return verdict != nullptr ? verdict->exit_code : -1;
  }

  FinishedJobs jobs;
  TimePoint now{1h};
};

TEST_F(FinishedJobsTest, ANodeWithARoundOfAJobThatIsOverHearsHowItEnded) {
  jobs.note("bert", {{100, 7, 3}, 0}, verdict_of(5), false, now);
  EXPECT_EQ(code_for(hello_of("bert", RoundId{100, 7, 3})), 5) << "of its last round";
  EXPECT_EQ(code_for(hello_of("bert", RoundId{100, 7, 1})), 5) << "of an older one";
  EXPECT_EQ(code_for(hello_of("bert", RoundId{99, 8, 4})), 5) << "of an older membership";
  EXPECT_EQ(code_for(hello_of("bert", RoundId{100, 7, 4})), -1) << "of a newer round, which began elsewhere";
  EXPECT_EQ(code_for(hello_of("gpt", RoundId{100, 7, 3})), -1) << "of another job";
}

TEST_F(FinishedJobsTest, ANewNodeMayBeginTheNextJobOfThatName) {
  jobs.note("bert", {{100, 7, 3}, 0}, verdict_of(5), false, now);
  EXPECT_EQ(code_for(hello_of("bert")), -1);
  EXPECT_EQ(jobs.known_of("bert", now).last_round, (RoundId{100, 7, 3})) << "its rounds are to be newer";
  EXPECT_EQ(jobs.known_of("gpt", now).last_round, RoundId{});
}

TEST_F(FinishedJobsTest, RestartsAreKnownOfAJobThatMayGoOn) {
  jobs.note("bert", {{100, 7, 3}, 2}, {}, false, now);
  EXPECT_EQ(jobs.known_of("bert", now).restart_count, 2);
  jobs.note("bert", {{101, 7, 3}, 3, {{{20s, 1}}}}, {}, false, now);
  now += 5s;
  EXPECT_EQ(jobs.known_of("bert", now).spent_restarts, (std::vector<SpentRestarts>{{25s, 1}}));
  jobs.note("bert", {{102, 7, 3}, 2}, verdict_of(5), false, now);
  EXPECT_EQ(jobs.known_of("bert", now).restart_count, 0) << "that is over";
}

TEST_F(FinishedJobsTest, ASpareThatWasWelcomedHearsOfTheEndUntilTheNextJobBegins) {
  auto spare = hello_of("bert");
  spare.was_welcomed = true;
  EXPECT_EQ(code_for(spare), -1);
  jobs.note("bert", {{100, 7, 3}, 0}, verdict_of(5), false, now);
  EXPECT_EQ(code_for(spare), 5);
  jobs.has_begun_again("bert");
  EXPECT_EQ(code_for(spare), -1) << "it may be a spare of that one";
  EXPECT_EQ(code_for(hello_of("bert", RoundId{100, 7, 3})), 5);
  jobs.note("bert", {{101, 7, 0}, 0}, verdict_of(6), true, now);
  EXPECT_EQ(code_for(spare), -1);
}

TEST_F(FinishedJobsTest, TheNewestJobOfANameCounts) {
  jobs.note("bert", {{100, 7, 3}, 0}, verdict_of(5), false, now);
  jobs.note("bert", {{200, 7, 0}, 0}, verdict_of(0), false, now);
  EXPECT_EQ(code_for(hello_of("bert", RoundId{200, 7, 0})), 0);
  jobs.note("bert", {{100, 7, 3}, 0}, verdict_of(5), false, now);
  jobs.note("bert", {{}, 0}, verdict_of(77), false, now);
  EXPECT_EQ(code_for(hello_of("bert", RoundId{200, 7, 0})), 0)
      << "an older one, or one without a round, replaces it not";
}

TEST_F(FinishedJobsTest, AJobThatAllHaveLeftHasNoVerdictButALastRound) {
  jobs.note("bert", {{100, 7, 3}, 0}, {}, false, now);
  EXPECT_EQ(code_for(hello_of("bert", RoundId{100, 7, 3})), -1);
  EXPECT_EQ(code_for(hello_of("bert", RoundId{100, 7, 1})), -1);
  EXPECT_EQ(jobs.known_of("bert", now).last_round, (RoundId{100, 7, 3}));
}

TEST_F(FinishedJobsTest, VerdictsAreKeptForATime) {
  jobs.note("bert", {{100, 7, 3}, 0}, verdict_of(5), false, now);
  now += FinishedJobs::kKept - 1ms;
  jobs.note("bert", {{100, 7, 3}, 0}, verdict_of(5), false, now);  // which prolongs nothing
  EXPECT_EQ(code_for(hello_of("bert", RoundId{100, 7, 3})), 5);
  now += 1ms;
  EXPECT_EQ(code_for(hello_of("bert", RoundId{100, 7, 3})), -1);
}

TEST_F(FinishedJobsTest, OfManyJobsTheLatestAreKept) {
  const auto name = [](std::size_t number) { return "job " + std::to_string(number); };
  for (std::size_t i = 0; i <= FinishedJobs::kCountMax; ++i)
    jobs.note(name(i), {{100, 7, 3}, 0}, verdict_of(5), false, now);
  EXPECT_EQ(code_for(hello_of(name(0), RoundId{100, 7, 3})), -1);
  EXPECT_EQ(code_for(hello_of(name(1), RoundId{100, 7, 3})), 5);
  EXPECT_EQ(code_for(hello_of(name(FinishedJobs::kCountMax), RoundId{100, 7, 3})), 5);
}

}  // namespace
}  // namespace ddp::rendezvous
