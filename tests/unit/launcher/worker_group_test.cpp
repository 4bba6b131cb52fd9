#include "launcher/worker_group/worker_group.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <set>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

constexpr Ending kOk{Ending::Kind::exited, 0, false};
Ending exited(int code) { return {Ending::Kind::exited, code, false}; }
Ending killed(int signal_number) { return {Ending::Kind::killed, signal_number, false}; }

// One letter per action, with what matters of it: "S0" StartRound, "T15" SignalTree, "O" KillOrphans, "K" KillTree,
// "R" AnnounceRestart, "F137" Finish.
std::string text_of(const WorkerGroup::Actions& actions) {
  std::string out;
  for (const auto& action : actions) {
    if (!out.empty()) out += ' ';
    if (const auto* start = std::get_if<StartRound>(&action)) out += "S" + std::to_string(start->round);
    if (const auto* signal = std::get_if<SignalTree>(&action)) out += "T" + std::to_string(signal->signal_number);
    if (std::holds_alternative<KillOrphans>(action)) out += "O";
    if (std::holds_alternative<KillTree>(action)) out += "K";
    if (std::holds_alternative<AnnounceRestart>(action)) out += "R";
    if (const auto* finish = std::get_if<Finish>(&action)) out += "F" + std::to_string(finish->outcome.exit_code);
  }
  return out;
}

class Group : public ::testing::Test {
 protected:
  void begin(WorkerGroupOptions options) {
    group.emplace(options);
    EXPECT_EQ(text_of(group->start(now)), "S0");
  }
  std::string step(std::vector<WorkerGroupEvent> events) {
    last = group->step(events, now);
    return text_of(last);
  }
  std::string tick_at(std::chrono::milliseconds later) {
    now += later;
    last = group->tick(now);
    return text_of(last);
  }
  const Outcome& outcome() const { return std::get<Finish>(last.back()).outcome; }

  std::optional<WorkerGroup> group;
  WorkerGroup::Actions last;
  TimePoint now{1h};
};

TEST_F(Group, AllEndWell) {
  begin({2, 0, 30s});
  EXPECT_EQ(step({WorkerEnded{1, kOk}}), "");
  EXPECT_EQ(step({WorkerEnded{0, kOk}, TreeEmpty{}}), "T15 F0");
  EXPECT_FALSE(outcome().failure);
}

TEST_F(Group, WhatOutlivesAGoodEndGetsTheGraceToo) {
  begin({1, 0, 30s});
  EXPECT_EQ(step({WorkerEnded{0, kOk}}), "T15");
  EXPECT_EQ(group->next_deadline(), now + 30s);
  EXPECT_EQ(tick_at(29s), "");
  EXPECT_EQ(tick_at(1s), "K");
  EXPECT_EQ(step({TreeEmpty{}}), "F0");
}

TEST_F(Group, TheFirstFailureIsTheCauseAndStopsTheOthers) {
  begin({3, 0, 30s});
  now += 5s;
  EXPECT_EQ(step({WorkerEnded{2, exited(3)}}), "O T15");
  EXPECT_EQ(step({WorkerEnded{0, exited(9)}}), "");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}}), "F3");
  EXPECT_EQ(outcome().failure->local_rank, 2);
  EXPECT_EQ(outcome().failure->after, 5s);
  EXPECT_EQ(outcome().failure->stopped_count, 2);
}

TEST_F(Group, OfSeveralFailuresInOneBatchTheKilledOneIsTheCause) {
  begin({3, 0, 30s});
  step({WorkerEnded{0, exited(1)}, WorkerEnded{1, killed(SIGKILL)}, WorkerEnded{2, exited(1)}, TreeEmpty{}});
  EXPECT_EQ(outcome().failure->local_rank, 1);
  EXPECT_EQ(outcome().exit_code, 137);
}

TEST_F(Group, StartsAgainWhileTheBudgetLasts) {
  begin({2, 2, 30s});
  EXPECT_EQ(step({WorkerEnded{0, exited(1)}}), "O T15");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}}), "R S1");
  EXPECT_EQ(step({WorkerEnded{0, exited(1)}, WorkerEnded{1, exited(1)}, TreeEmpty{}}), "O T15 R S2");
  EXPECT_EQ(step({WorkerEnded{0, kOk}, WorkerEnded{1, exited(4)}, TreeEmpty{}}), "O T15 F4");
  EXPECT_EQ(outcome().failure->round, 2);
}

TEST_F(Group, ARoundBeginsOnlyWhenTheTreeIsEmpty) {
  begin({1, 1, 30s});
  EXPECT_EQ(step({WorkerEnded{0, exited(1)}}), "O T15");
  EXPECT_EQ(tick_at(10s), "");
  EXPECT_EQ(step({TreeEmpty{}}), "R S1");
}

TEST_F(Group, AnEmptyTreeMeansNothingWhileWorkersAreBeingSpawned) {
  begin({2, 0, 30s});
  EXPECT_EQ(step({WorkerEnded{0, kOk}, TreeEmpty{}}), "");
  EXPECT_EQ(step({WorkerEnded{1, kOk}, TreeEmpty{}}), "T15 F0");
}

TEST_F(Group, GraceThenKill) {
  begin({2, 0, 3s});
  step({WorkerEnded{0, exited(1)}});
  EXPECT_EQ(tick_at(2999ms), "");
  EXPECT_EQ(tick_at(1ms), "K");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGKILL)}, TreeEmpty{}}), "F1");
}

TEST_F(Group, WhatCannotBeKilledIsReported) {
  begin({1, 5, 1s});
  step({StopSignal{SIGTERM}});
  EXPECT_EQ(tick_at(1s), "K");
  EXPECT_EQ(tick_at(30s), "F143");
  EXPECT_TRUE(outcome().tree_survived);
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGKILL)}, TreeEmpty{}}), "");
}

TEST_F(Group, AStopSignalIsPassedOnAndEndsTheJob) {
  begin({2, 9, 30s});
  EXPECT_EQ(step({StopSignal{SIGINT}}), "T2");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGINT)}, WorkerEnded{1, exited(1)}, TreeEmpty{}}), "T15 F130");
  EXPECT_FALSE(outcome().failure);
}

TEST_F(Group, ASecondStopSignalKillsButAnEchoOfTheFirstDoesNot) {
  begin({1, 0, 30s});
  EXPECT_EQ(step({StopSignal{SIGINT}}), "T2");
  now += 50ms;
  EXPECT_EQ(step({StopSignal{SIGINT}}), "");
  now += 300ms;
  EXPECT_EQ(step({StopSignal{SIGINT}}), "K");
  EXPECT_EQ(step({StopSignal{SIGINT}}), "");
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGKILL)}, TreeEmpty{}}), "F130");
}

TEST_F(Group, AWorkerThatDiesOfTheSignalThatStopsDdprunIsNoFailure) {
  begin({2, 3, 30s});
  EXPECT_EQ(step({WorkerEnded{0, killed(SIGTERM)}}), "O T15");  // a scheduler signals every process
  EXPECT_EQ(step({StopSignal{SIGTERM}}), "");
  EXPECT_EQ(step({WorkerEnded{1, killed(SIGTERM)}, TreeEmpty{}}), "F143");
  EXPECT_FALSE(outcome().failure);
}

TEST_F(Group, AStopSignalEndsARestartButNotTheBlame) {
  begin({1, 1, 30s});
  step({WorkerEnded{0, exited(7)}});
  EXPECT_EQ(step({StopSignal{SIGINT}, TreeEmpty{}}), "F130");
  begin({1, 0, 30s});
  step({WorkerEnded{0, exited(7)}});
  EXPECT_EQ(step({StopSignal{SIGINT}, TreeEmpty{}}), "F7");
}

TEST_F(Group, AProgramThatCannotStartIsNotTriedAgain) {
  begin({2, 5, 30s});
  const Ending missing{Ending::Kind::not_started, ENOENT, false};
  EXPECT_EQ(step({WorkerEnded{0, missing}, WorkerEnded{1, missing}, TreeEmpty{}}), "O T15 F127");
}

// Random histories against what must always hold, with a model of the processes that obeys the actions.
TEST(WorkerGroupHistories, KeepTheirPromises) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    const WorkerGroupOptions options{static_cast<int>(1 + below(4)), static_cast<int>(below(3)), 10s};
    WorkerGroup group(options);
    TimePoint now{1h};
    std::set<int> running;  // workers; -1 stands for a descendant that outlives them
    int rounds = 0, finished = 0;
    bool killed_all = false;
    std::optional<TimePoint> stopping_since;
    const auto perform = [&](const WorkerGroup::Actions& actions) {
      for (const auto& action : actions) {
        ASSERT_EQ(finished, 0) << "an action after the end";
        if (std::holds_alternative<StartRound>(action)) {
          ASSERT_TRUE(running.empty()) << "a round began while processes of the last one were left";
          for (int rank = 0; rank < options.workers; ++rank) running.insert(rank);
          if (below(2) == 0) running.insert(-1);
          ASSERT_LE(++rounds, options.restarts_max + 1);
          killed_all = false;
          stopping_since.reset();
        }
        if (std::holds_alternative<SignalTree>(action)) stopping_since = now;
        if (std::holds_alternative<KillTree>(action)) killed_all = true;
        if (std::holds_alternative<Finish>(action)) {
          ASSERT_TRUE(running.empty());
          ++finished;
        }
      }
    };
    perform(group.start(now));
    for (int i = 0; i < 1000 && finished == 0; ++i) {
      now += std::chrono::milliseconds(below(700));
      if (group.next_deadline() && now >= *group.next_deadline()) perform(group.tick(now));
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
      const bool grace_is_over = stopping_since && now > *stopping_since + options.grace + 1s;
      ASSERT_TRUE(!grace_is_over || killed_all) << "no kill after the grace";
      std::vector<WorkerGroupEvent> events;
      for (const int who : std::set<int>(running)) {
        if (!killed_all && below(stopping_since ? 8 : 40) != 0) continue;
        if (who == -1 && !killed_all) continue;  // it obeys nothing but SIGKILL
        running.erase(who);
        if (who >= 0) events.push_back(WorkerEnded{who, below(3) != 0 ? kOk : below(2) != 0 ? exited(1) : killed(SIGKILL)});
      }
      if (below(60) == 0) events.push_back(StopSignal{SIGTERM});
      if (running.empty()) events.push_back(TreeEmpty{});
      if (!events.empty()) perform(group.step(events, now));
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
    ASSERT_EQ(finished, 1) << "the job never ended";
  }
}

}  // namespace
}  // namespace ddp::launcher
