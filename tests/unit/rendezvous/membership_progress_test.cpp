// What the workers keep, and the book that is kept of a run.
#include "membership_job.hpp"

namespace ddp::rendezvous {
namespace {

class WhatIsKept : public Job {
 protected:
  void one_node_runs(int restarts_max) {
    begin(1, 1, restarts_max);
    join(1, "a", 0, true);
  }
  // The round under way, as far as that has not ended the job.
  void fails_having_kept(const Progress& kept) {
    if (finished.count(1) != 0) return;
    RoundEnded ended{started.at(1).round.number, {failure(0, exited(3))}, 1, false};
    ended.progress = kept;
    says(1, ended);
  }
  std::uint32_t round() const { return started.at(1).round.number; }
};

TEST_F(WhatIsKept, ThreeFailuresInARowWithoutAnyAreACrashLoop) {
  one_node_runs(10);
  fails_having_kept({5, 100});
  fails_having_kept({0, 100});
  fails_having_kept({0, 90});
  EXPECT_EQ(round(), 3u);
  EXPECT_EQ(finished.count(1), 0u) << "the first one had kept something";
  fails_having_kept({0, {}});
  ASSERT_EQ(finished.count(1), 1u);
  EXPECT_EQ(finished.at(1).exit_code, 76);
  EXPECT_EQ(exit_code_of(outcome::WorkerFailed{finished.at(1).cause->ending}), 3) << "the cause is told all the same";
  EXPECT_THAT(finished.at(1).what.value(), HasSubstr("3 rounds in a row failed without a commit or a checkpoint"));
}

TEST_F(WhatIsKept, WorkersThatKeepThingsAndNeverCameToOneAreACrashLoopToo) {
  one_node_runs(10);
  for (int i = 0; i < 3; ++i) fails_having_kept({{}, 0});
  EXPECT_EQ(finished.at(1).exit_code, 76);
}

TEST_F(WhatIsKept, AnyMoreBeginsTheCountAnew) {
  one_node_runs(50);
  for (std::uint64_t i = 1; i <= 5; ++i) {
    fails_having_kept({0, i});
    fails_having_kept({0, i});
    fails_having_kept({0, i});
    fails_having_kept({1, {}});  // that go on from those before, or begin anew with new processes
    fails_having_kept({{}, i});
    fails_having_kept({{}, 0});
  }
  EXPECT_EQ(finished.count(1), 0u);
  fails_having_kept({0, 5});
  EXPECT_EQ(finished.at(1).exit_code, 76);
}

TEST_F(WhatIsKept, OfWorkersThatTellNothingTheBudgetDecides) {
  one_node_runs(6);
  for (int i = 0; i < 7; ++i) fails_having_kept({});
  EXPECT_EQ(finished.at(1).exit_code, 3);
  EXPECT_EQ(round(), 6u);
}

TEST_F(WhatIsKept, TheLastFailureOfTheBudgetHasItsOwnCode) {
  one_node_runs(2);
  for (int i = 0; i < 3; ++i) fails_having_kept({{}, 0});
  EXPECT_EQ(finished.at(1).exit_code, 3) << "no other round was due anyway";
}

TEST_F(WhatIsKept, AChangeOfMembersIsNoFailure) {
  begin(1, 2, 0);
  join(1, "a", 0, true);
  for (std::uint64_t id = 2; id < 8; ++id) {
    join(id, "b");
    pass(20s);  // the last call
    if (!stopped[1].empty() && stopped[1].back().round == round()) ends(1, {}, 2);
    leaves(id);
    RoundEnded ended{round(), {}, 2, false};
    ended.progress = {{}, 0};
    says(1, ended);
  }
  EXPECT_EQ(finished.count(1), 0u);
}

TEST_F(WhatIsKept, ARoundThatNeverBeganIsNoFailureOfItsWorkers) {
  begin(2, 2, 10);
  join(1, "a", 0, true);
  join(2, "b", 1);
  for (std::uint64_t id = 2; id < 4; ++id) {
    RoundEnded ended{round(), {failure(0, exited(3))}, 1, false};
    ended.progress = {{}, 0};
    stores_open = false;
    says(1, ended);
    ends(id, {}, 2);
    leaves(id);  // while the store is opened
    stores_open = true;
    join(id + 1, "b", 1);
  }
  EXPECT_EQ(finished.count(1), 0u) << "two rounds have failed";
}

TEST_F(WhatIsKept, FillsTheBudgetOfAWindowAgain) {
  restart_window = 1h;
  one_node_runs(1);
  for (std::uint64_t i = 1; i <= 5; ++i) fails_having_kept({i, {}});
  EXPECT_EQ(finished.count(1), 0u);
  EXPECT_EQ(started.at(1).restart_count, 5);
  fails_having_kept({0, {}});
  EXPECT_EQ(finished.at(1).exit_code, 3);
}

TEST_F(WhatIsKept, LeavesABudgetWithoutAWindowAsItIs) {
  one_node_runs(1);
  fails_having_kept({1, {}});
  fails_having_kept({2, {}});
  EXPECT_EQ(finished.at(1).exit_code, 3);
}

// --- the report ---

TEST_F(Job, TheReportTellsOfEachRoundWhereTheTimeWent) {
  begin(2, 2, 1);
  join(1, "a", 0, true);
  pass(100ms);
  hello.wants_report = false;
  join(2, "b", 1);
  pass(20ms);
  says(1, RoundStarted{0});
  says(2, RoundStarted{0});
  pass(300ms);
  says(1, FirstStep{0});
  pass(10ms);
  says(1, FirstStep{0});
  says(2, FirstStep{0});
  pass(1000ms);
  says(2, RoundFailed{0, "rank 2 was killed", {}, 1425ms});
  pass(30ms);
  ends(1, {}, 2);
  ends(2, {failure(2, kKilled, 1425ms)}, 1);
  RoundTimes first{0, "", 2, 4, 0ms, 0ms, 100ms, 20ms, 310ms, 995ms};
  EXPECT_EQ(started.at(1).round_before, first) << "the file of the report has all rounds";
  EXPECT_FALSE(started.at(2).round_before);
  pass(5ms);
  says(1, RoundStarted{1});
  says(2, RoundStarted{1});
  pass(40ms);
  ends(1);
  ends(2);
  ASSERT_TRUE(finished.at(1).report);
  EXPECT_FALSE(finished.at(2).report) << "group rank 0 alone has not asked for it and gets it";
  const auto& report = *finished.at(1).report;
  ASSERT_EQ(report.rounds.size(), 2u);
  RoundTimes second{1, "rank 2 was killed by SIGKILL after 60 s", 2, 4, 5ms, 30ms, 0ms, 5ms, {}, 40ms};
  EXPECT_EQ(report.rounds[0], first);
  EXPECT_EQ(report.rounds[1], second) << report.rounds[1].why;
  EXPECT_EQ(report.total, 1505ms);
  EXPECT_EQ(report.worked, 1035ms);
}

TEST_F(Job, TheReportTellsWhatWasLostAfterTheNewestCommitOfAnyNode) {
  begin(2, 2, 1);
  join(1, "a", 0, true);
  join(2, "b", 1);
  for (const std::uint32_t round : {0u, 1u}) {
    for (const std::uint64_t node : {1, 2}) {
      says(node, RoundStarted{round});
      says(node, FirstStep{round});
    }
    pass(1000ms);
    if (round == 1) break;
    says(1, RoundEnded{round, {failure(0, kKilled, 1000ms)}, 0, false, 0, {5, {}, 700ms}});
    says(2, RoundEnded{round, {}, 2, false, 0, {5, {}, 800ms}});
  }
  EXPECT_EQ(started.at(1).round_before->lost, 200ms);
  ends(1);
  ends(2);
  const auto& report = *finished.at(1).report;
  ASSERT_EQ(report.rounds.size(), 2u);
  EXPECT_EQ(report.rounds[0].lost, 200ms);
  EXPECT_EQ(report.useful, 1800ms);
}

TEST_F(Job, TheReportGoesToWhoAsksForIt) {
  begin(2, 2);
  join(1, "a", 0, true);
  hello.wants_report = true;
  join(2, "b", 1);
  ends(1);
  ends(2);
  EXPECT_TRUE(finished.at(2).report);
}

TEST_F(Job, ANodesSilenceAndItsReturnThatDidNotComeCountAsDetection) {
  begin(1, 3, 0);
  for (std::uint64_t id = 1; id <= 3; ++id) join(id, "n" + std::to_string(id), static_cast<int>(id - 1));
  pass(10s);
  falls_silent(3);
  for (const std::uint64_t id : {1, 2}) ends(id, {}, 2);
  pass(10s);
  disconnects(2);
  pass(1s);
  ends(1, {}, 2);
  ends(1);
  const auto& rounds = finished.at(1).report->rounds;
  ASSERT_EQ(rounds.size(), 3u);
  EXPECT_EQ(rounds[1].detect, 3s);
  EXPECT_EQ(rounds[2].detect, 1s);
}

TEST_F(Job, ARoundThatAnotherMembershipBeganIsInTheReport) {
  begin(2, 2);
  hello.held = Held{{1600000000, 1, 4}, 0, 2, 0, true, false, {"nonce"}};
  join(1, "a");
  hello.held->group_rank = 1;
  pass(100ms);
  join(2, "b");
  pass(1s);
  says(1, RoundEnded{4, {}, 0, false});
  says(2, RoundEnded{4, {}, 0, false});
  ASSERT_TRUE(finished.at(1).report);
  RoundTimes adopted{4, "another membership began it", 2, 4, 0ms, 0ms, 100ms, 0ms, {}, 1s};
  EXPECT_EQ(finished.at(1).report->rounds, std::vector{adopted});
}

}  // namespace
}  // namespace ddp::rendezvous
