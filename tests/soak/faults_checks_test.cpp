// The rules of faults_soak, each on logs that break it and on logs that do not.
#include "tests/soak/faults_checks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace ddp::soak {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

RoundNumbers round_of(std::uint64_t number) { return {1, 7, number}; }

// Of one worker: a round that begins with `adopted` and makes some steps, 1 s apart.
void add_round(WorkerLog& log, std::uint64_t number, Nanoseconds begin, std::uint64_t adopted, std::int64_t step,
               int commits) {
  log.begins.push_back({.round = round_of(number),
                        .rank = 0,
                        .size = 2,
                        .time = begin,
                        .adopted = adopted == 99 ? RoundNumbers{} : round_of(adopted),
                        .step = step});
  for (int i = 1; i <= commits; ++i) log.commits.push_back({round_of(number), step + i, begin + i * 1s});
}

std::vector<std::string> broken_rules(const History& run) {
  std::vector<std::string> out;
  for (const auto& violation : violations_of(run)) out.push_back(violation.rule);
  return out;
}

constexpr std::uint64_t kNothing = 99;

// Two nodes, a round of ten steps, then another of ten.
History good_run() {
  History run;
  for (const int host : {0, 1}) {
    WorkerLog log{.host = host, .begins = {}, .commits = {}};
    add_round(log, 0, 0s, kNothing, 0, 10);
    add_round(log, 1, 12s, 0, 10, 10);
    run.workers.push_back(log);
  }
  run.end = 22s;
  return run;
}

TEST(FaultsChecks, ARunThatLosesNothingBreaksNoRule) { EXPECT_THAT(broken_rules(good_run()), IsEmpty()); }

TEST(FaultsChecks, TwoRoundsThatBothSurviveMayNotCommitAtOnce) {
  History run = good_run();
  WorkerLog apart{.host = 2, .begins = {}, .commits = {}};
  add_round(apart, 2, 12s, 0, 10, 7);
  run.workers.push_back(apart);
  EXPECT_THAT(broken_rules(run), IsEmpty()) << "no round begins with what it did";
  add_round(run.workers[2], 3, 20s, 2, 18, 0);
  EXPECT_THAT(broken_rules(run), IsEmpty()) << "no commit follows";
  add_round(run.workers[2], 3, 20500ms, 2, 18, 1);
  EXPECT_THAT(broken_rules(run), ElementsAre("split"));
  run.workers[2] = apart;
  add_round(run.workers[2], 2, 19s, 2, 17, 3);
  EXPECT_THAT(broken_rules(run), ElementsAre("split")) << "it goes on";
}

TEST(FaultsChecks, ARoundBeginsWithWhatANodeStillHas) {
  History run = good_run();
  for (auto& worker : run.workers) add_round(worker, 2, 23s, 0, 10, 2);
  run.end = 26s;
  EXPECT_THAT(broken_rules(run), ElementsAre("lost", "lost")) << "both nodes had committed step 20";
}

TEST(FaultsChecks, WhatOnlyAKilledWorkerHadMayBeLost) {
  History run = good_run();
  WorkerLog other{.host = 0, .begins = {}, .commits = {}};
  add_round(other, 2, 23s, kNothing, 0, 2);
  run.workers.push_back(other);
  run.end = 26s;
  run.faults = {{.what = "kill", .begin = 22s, .end = 22s, .hosts = {0}, .is_of_network = false, .ends_worker = true}};
  EXPECT_THAT(broken_rules(run), ElementsAre("lost")) << "node 1 has it";
  run.faults[0].hosts = {0, 1};
  EXPECT_THAT(broken_rules(run), IsEmpty());
}

TEST(FaultsChecks, ALongGapIsOneThatNoFaultLastsFor) {
  History run = good_run();
  run.end = 33s;
  EXPECT_THAT(broken_rules(run), ElementsAre("gap"));
  run.faults = {{.what = "cut", .begin = 21s, .end = 24s, .hosts = {0}, .is_of_network = true, .ends_worker = false}};
  EXPECT_THAT(broken_rules(run), IsEmpty());
}

TEST(FaultsChecks, ARoundEndsForAHostThatAFaultHasHit) {
  History run = good_run();
  run.reasons = {{.round = round_of(0), .host = 1, .rank = 1, .time = 0s, .why = ""},
                 {.round = round_of(1), .host = 0, .rank = 0, .time = 11s, .why = "node 1 (host node1-0) was lost: x"}};
  const Fault kill{.what = "kill", .begin = 10s, .end = 10s, .hosts = {1}, .is_of_network = false, .ends_worker = true};
  const auto is_right = [&](const std::string& why, const Fault& fault) {
    run.reasons[1].why = why;
    run.faults = {fault};
    return broken_rules(run).empty();
  };
  Fault elsewhere = kill, earlier = kill, cut = kill;
  elsewhere.hosts = {0};
  earlier.begin = earlier.end = 5s;
  cut.hosts = {0};
  cut.is_of_network = true;
  for (const std::string why :
       {"node 1 (host node1-0) was lost: its ddprun ended", "rank 1 was killed by SIGKILL after 5 s"}) {
    SCOPED_TRACE(why);
    run.servers = {};
    EXPECT_TRUE(is_right(why, kill));
    EXPECT_FALSE(is_right(why, elsewhere));
    EXPECT_FALSE(is_right(why, earlier)) << "the round went on after it";
    EXPECT_FALSE(is_right(why, cut));
    run.servers = {{round_of(0), 0}};
    EXPECT_TRUE(is_right(why, cut)) << "the host that serves the job reaches nobody";
  }
  run.servers = {};
  const std::string hung = "rank 1 was killed by ddprun after 5 s: it did not come to all_reduce";
  Fault broken_link = cut;
  broken_link.hosts = {0, 1};
  broken_link.ends_worker = false;
  EXPECT_TRUE(is_right(hung, kill));
  EXPECT_FALSE(is_right(hung, broken_link));
  EXPECT_TRUE(is_right("1 more node has come: node2-1", elsewhere)) << "nobody failed";
}

}  // namespace
}  // namespace ddp::soak
