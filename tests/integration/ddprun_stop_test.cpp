// ddprun is told to stop: workers that take part stop at one step, of which the whole job has agreed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/text.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DdprunStop : public ::testing::Test {
 protected:
  DdprunStop() {
    std::string name = std::filesystem::temp_directory_path() / "ddprun_stop_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~DdprunStop() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void make(const std::string& name) const { std::ofstream(path(name)) << '\n'; }

  std::vector<std::string> workers(int count, std::vector<std::string> options = {},
                                   std::vector<std::string> does = {}) const {
    options.insert(options.end(), {"--nproc-per-node=" + std::to_string(count), built("stop_worker"), folder_});
    options.insert(options.end(), does.begin(), does.end());
    return options;
  }

  static std::vector<std::string> node(int rank, const std::string& port, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--nnodes=2", "--node-rank=" + std::to_string(rank), "--master-addr=127.0.0.1",
                             "--master-port=" + port});
    return more;
  }

  std::string folder_;
};

std::multiset<int> steps_of(const Job& job) {
  std::multiset<int> out;
  for (const auto& line : matches(job.out(), "stops at ([0-9]+) ;")) out.insert(std::stoi(line[1]));
  return out;
}

TEST_F(DdprunStop, AllWorkersStopAtOneStepAndTheCodeSaysSo) {
  Job job(workers(3));
  ASSERT_TRUE(job.prints("up round", 3));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 75) << job.err();
  const auto steps = steps_of(job);
  ASSERT_EQ(steps.size(), 3u) << job.out();
  EXPECT_EQ(*steps.begin(), *steps.rbegin());
  EXPECT_THAT(job.err(),
              AllOf(HasSubstr("all 3 workers are asked to stop at one step, with SIGKILL after 30 s or at a second"),
                    HasSubstr("all 3 workers stop at call " + std::to_string(*steps.begin()) + " of should_stop()"),
                    HasSubstr("stopped on purpose"), Not(HasSubstr("error:"))));
}

TEST_F(DdprunStop, ASignalToOneNodeStopsAllAtOneStep) {
  const auto port = free_port();
  Job zero(workers(2, node(0, port))), one(workers(1, node(1, port)));
  ASSERT_TRUE(zero.prints("up round", 2));
  ASSERT_TRUE(one.prints("up round"));
  one.kill(SIGINT);
  EXPECT_EQ(one.wait(), 75) << one.err();
  EXPECT_EQ(zero.wait(), 75) << zero.err();
  auto steps = steps_of(zero);
  steps.merge(steps_of(one));
  ASSERT_EQ(steps.size(), 3u) << zero.out() << one.out();
  EXPECT_EQ(*steps.begin(), *steps.rbegin());
  for (const auto* job : {&zero, &one}) EXPECT_THAT(job->err(), HasSubstr("stopped on purpose"));
}

TEST_F(DdprunStop, TimeLimitEndsTheJobWithAnErrorAndTheGrace) {
  Job job(shell(2, "trap 'echo warned' TERM; echo up; " + kWaitForSignals, {"--timeout=1", "--shutdown-timeout=1"}));
  EXPECT_EQ(job.wait(), 124) << job.err();
  EXPECT_THAT(job.out(), AllOf(HasSubstr("up"), HasSubstr("warned")));
  EXPECT_THAT(
      job.err(),
      AllOf(HasSubstr("the time limit of 1 s is over (--timeout): stopping both workers, with SIGKILL after 1 s"),
            HasSubstr("error: stopped by the time limit of 1 s on host "),
            HasSubstr("\nwhere: the job as a whole\ntry:   a longer --timeout")));
  EXPECT_TRUE(job.is_gone_within());
}

TEST_F(DdprunStop, TimeLimitOfOneNodeEndsAllNodesAlike) {
  const auto port = free_port();
  Job zero(workers(1, node(0, port), {"deaf=1"})), one(workers(1, node(1, port, {"--timeout=2"}), {"deaf=1"}));
  EXPECT_EQ(one.wait(), 124) << one.err();
  EXPECT_EQ(zero.wait(), 124) << zero.err();
  for (const auto* job : {&zero, &one}) EXPECT_THAT(job->err(), HasSubstr("by the time limit of 2 s on host "));
}

TEST_F(DdprunStop, TimeLimitCountsWhileANodeWaitsForOthers) {
  Job zero(workers(1, node(0, free_port(), {"--timeout=1"})));
  EXPECT_EQ(zero.wait(), 124) << zero.err();
  EXPECT_THAT(zero.err(), HasSubstr("error: stopped by the time limit of 1 s on host "));
  Job one(workers(1, node(1, free_port(), {"--timeout=1"})));
  EXPECT_EQ(one.wait(), 124) << one.err();
  EXPECT_THAT(one.err(), HasSubstr("error: the time limit of 1 s is over (--timeout), and the job has not come"));
}

TEST_F(DdprunStop, WorkersMayStopAtOneStepWhenTheTimeIsOver) {
  Job job(workers(2, {"--timeout=1"}));
  EXPECT_EQ(job.wait(), 75) << job.err();
  EXPECT_EQ(steps_of(job).size(), 2u);
}

TEST_F(DdprunStop, WhereOneWorkerTakesNoPartAllAreStoppedByTheSignal) {
  Job job(workers(3, {}, {"deaf=1"}));
  ASSERT_TRUE(job.prints("up round", 3));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("stopping all 3 workers"));
  EXPECT_TRUE(steps_of(job).empty());
}

TEST_F(DdprunStop, WhereAWorkerOfAnotherNodeTakesNoPartAllAreStoppedByTheSignal) {
  const auto port = free_port();
  Job zero(workers(1, node(0, port), {"deaf=1"})), one(workers(1, node(1, port), {"deaf=1"}));
  ASSERT_TRUE(zero.prints("up round"));
  ASSERT_TRUE(one.prints("up round"));
  zero.kill(SIGTERM);
  EXPECT_EQ(zero.wait(), 143) << zero.err();
  EXPECT_EQ(one.wait(), 143) << one.err();
  EXPECT_THAT(zero.err(), AllOf(HasSubstr("the worker is asked to stop at one step"),
                                HasSubstr("no one step for all: 1 worker gets SIGTERM now")));
  EXPECT_TRUE(steps_of(zero).empty());
}

TEST_F(DdprunStop, ASecondSignalKillsWhoHasNotEnded) {
  Job job(workers(2, {}, {"hang=1"}));
  ASSERT_TRUE(job.prints("up round", 2));
  job.kill(SIGTERM);
  ASSERT_TRUE(job.prints("stops at", 2));
  ASSERT_TRUE(
      becomes_true([&] { return job.processes().size() == 3; }));  // ddprun, its guardian and the one that hangs
  EXPECT_TRUE(becomes_true([&] {  // one that comes soon after the first is the same wish
    job.kill(SIGTERM);
    return job.processes().empty();
  }));
  EXPECT_EQ(job.wait(), 143) << job.err();
}

TEST_F(DdprunStop, WhoHasNotEndedWhenTheGraceIsOverIsKilled) {
  Job job(workers(2, {"--shutdown-timeout=6"}, {"hang=1"}));  // half of it is for agreeing on a step
  ASSERT_TRUE(job.prints("up round", 2));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.err();
  EXPECT_EQ(steps_of(job).size(), 2u);
  EXPECT_TRUE(job.is_gone_within());
}

TEST_F(DdprunStop, AWorkerThatFailsOnTheWayIsTheCause) {
  Job job(workers(3, {}, {"fail=1"}));
  ASSERT_TRUE(job.prints("up round", 3));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 4) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("rank 1 ended with exit code 4"));
}

TEST_F(DdprunStop, WhereTheWorkIsDoneBeforeTheStepItIsNoStop) {
  Job job(workers(2, {}, {"finish"}));
  ASSERT_TRUE(job.prints("up round", 2));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST_F(DdprunStop, AWarningStopsAtOneStepOnceAllTakePart) {
  Job job(workers(2, {"--forward-signals=SIGUSR1", "--shutdown-timeout=10"}, {"late=1"}));
  ASSERT_TRUE(job.prints("up round", 2));
  job.kill(SIGUSR1);
  ASSERT_TRUE(job.prints("no worker of this node handles it"));
  make("go");
  EXPECT_EQ(job.wait(), 75) << job.err();
  EXPECT_EQ(steps_of(job).size(), 2u);
}

TEST_F(DdprunStop, AfterAWarningARoundThatFollowsAFailureIsAskedToo) {
  Job job(workers(2, {"--forward-signals=SIGUSR1", "--max-restarts=1"}, {"late=1", "seats", "die=0"}));
  ASSERT_TRUE(job.prints("up round=0", 2));
  job.kill(SIGUSR1);
  ASSERT_TRUE(job.prints("no worker of this node handles it"));
  make("die");
  ASSERT_TRUE(job.prints("up round=1", 2));
  EXPECT_EQ(steps_of(job).size(), 0u);
  make("go");
  EXPECT_EQ(job.wait(), 75) << job.err();
  EXPECT_EQ(steps_of(job).size(), 2u) << job.out();
}

// The one that stands still is not heard of for longer than a step is waited for.
TEST_F(DdprunStop, WhereMembershipDoesNotAnswerTheSignalGoesToAll) {
  const auto port = free_port();
  const std::vector<std::string> grace{"--shutdown-timeout=2", "--rdzv-conf=heartbeat_timeout=4"};
  Job zero(workers(1, node(0, port, grace))), one(workers(1, node(1, port, grace)));
  ASSERT_TRUE(zero.prints("up round"));
  ASSERT_TRUE(one.prints("up round"));
  zero.kill(SIGSTOP);
  one.kill(SIGTERM);
  EXPECT_EQ(one.wait(), 143) << one.err();
  EXPECT_THAT(one.err(), HasSubstr("no one step for all: 1 worker gets SIGTERM now"));
}

TEST_F(DdprunStop, WhoIsStartedAgainIsToldThatTheSignalIsMeantForIt) {
  Job job(workers(3, {"--max-restarts=1"}, {"seats=0", "die=2"}));
  ASSERT_TRUE(job.prints("up round=0", 3));
  make("die");
  ASSERT_TRUE(job.prints("up round=1", 3)) << job.err();
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 75) << job.err();
}

// As a scheduler does that signals every process of a job.
TEST_F(DdprunStop, WorkersOfLibddpStopAtOneStepThoughEveryProcessIsSignalled) {
  const auto port = free_port();
  auto first = node(0, port, {"--nproc-per-node=2"}), second = node(1, port, {"--nproc-per-node=1"});
  for (auto* arguments : {&first, &second}) arguments->push_back(built("should_stop_worker"));
  Job zero(first), one(second);
  ASSERT_TRUE(zero.prints("up round", 2)) << zero.err();
  ASSERT_TRUE(one.prints("up round")) << one.err();
  for (const auto* job : {&zero, &one})
    for (const auto pid : job->processes()) ::kill(pid, SIGTERM);
  EXPECT_EQ(zero.wait(), 75) << zero.err();
  EXPECT_EQ(one.wait(), 75) << one.err();
  auto steps = steps_of(zero);
  steps.merge(steps_of(one));
  ASSERT_EQ(steps.size(), 3u) << zero.out() << one.out();
  EXPECT_EQ(*steps.begin(), *steps.rbegin());
}

TEST_F(DdprunStop, AWarningStopsWorkersOfLibddpAtOneStep) {
  Job job({"--nproc-per-node=3", "--forward-signals=SIGUSR1", built("should_stop_worker")});
  ASSERT_TRUE(job.prints("up round", 3)) << job.err();
  job.kill(SIGUSR1);
  EXPECT_EQ(job.wait(), 75) << job.err();
  EXPECT_EQ(steps_of(job).size(), 3u);
}

TEST_F(DdprunStop, AWarnedNodeOfAnElasticJobLeavesAtOneStep) {
  const auto port = free_port();
  const auto start = [&](int rank) {
    auto arguments = elastic_node("1:2", rank, port, 2);
    arguments.insert(arguments.end(), {"--forward-signals=SIGUSR1", built("should_stop_worker")});
    return arguments;
  };
  Job zero(start(0)), one(start(1));
  ASSERT_TRUE(zero.prints("up round=0", 2)) << zero.err();
  ASSERT_TRUE(one.prints("up round=0", 2)) << one.err();
  one.kill(SIGUSR1);
  EXPECT_EQ(one.wait(), 143) << one.err();
  ASSERT_TRUE(zero.prints("up round=1", 2)) << zero.err();
  auto steps = steps_of(zero);
  steps.merge(steps_of(one));
  ASSERT_EQ(steps.size(), 4u) << zero.out() << one.out();
  EXPECT_EQ(*steps.begin(), *steps.rbegin());
  EXPECT_THAT(one.err(), HasSubstr("the job goes on if enough other nodes are left"));
  zero.kill(SIGUSR1);
  EXPECT_EQ(zero.wait(), 75) << "too few would be left: " << zero.err();
}

TEST_F(DdprunStop, TheReportTellsOfEveryRound) {
  Job job(workers(2, {"--report=" + path("report.json"), "--rdzv-id=bert", "--max-restarts=1"}, {"seats", "die=1"}));
  ASSERT_TRUE(job.prints("up round=0", 2));
  make("die");
  ASSERT_TRUE(job.prints("up round=1", 2));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 75) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr("2 rounds in "), HasSubstr("  round 1: 2 workers on 1 node, ready after ")));
  const auto report = nlohmann::json::parse(std::ifstream(path("report.json")));
  EXPECT_EQ(report.at("run_id"), "bert");
  EXPECT_EQ(report.at("exit_code"), 75);
  EXPECT_EQ(report.at("rounds_count"), 2);
  ASSERT_EQ(report.at("rounds").size(), 2u);
  EXPECT_THAT(report.at("rounds")[0].at("why").get<std::string>(), HasSubstr("rank 1 ended with exit code 3"));
  EXPECT_THAT(report.at("rounds")[1].at("why").get<std::string>(), HasSubstr("stopped on purpose"));
  EXPECT_TRUE(report.at("rounds")[1].at("cause").is_null());
  for (const auto& round : report.at("rounds")) EXPECT_TRUE(round.at("first_step_seconds").is_number()) << round;
}

TEST_F(DdprunStop, GoodputDoesNotCountStepsThatAreDoneAgain) {
  for (const std::string does : {"nothing", "commit", "mute"}) {
    SCOPED_TRACE(does);
    Job job(workers(2, {"--report=" + path("report.json"), "--max-restarts=1"}, {"die=1", does}));
    ASSERT_TRUE(job.prints("up round=0", 2));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the work, which is told in milliseconds
    if (does == "commit") {
      make("commit");
      ASSERT_TRUE(job.prints("committed", 2));
    }
    make("die");
    ASSERT_TRUE(job.prints("up round=1", 2));
    job.kill(SIGTERM);
    EXPECT_EQ(job.wait(), 75) << job.err();
    std::filesystem::remove(path("die"));
    std::filesystem::remove(path("commit"));
    const auto report = nlohmann::json::parse(std::ifstream(path("report.json")));
    const auto& first = report.at("rounds")[0];
    const auto &lost = first.at("lost_seconds"), &goodput = report.at("goodput");
    EXPECT_TRUE(report.at("rounds")[1].at("lost_seconds").is_null());
    if (does == "mute") {
      EXPECT_TRUE(lost.is_null() && goodput.is_null()) << report;
      EXPECT_THAT(job.err(), Not(HasSubstr("% of the time")));
      continue;
    }
    EXPECT_THAT(job.err(), HasSubstr("% of the time in steps that count\n"));
    EXPECT_LT(goodput.get<double>() * report.at("total_seconds").get<double>(), report.at("worked_seconds"));
    if (does == "commit") {
      EXPECT_LT(lost.get<double>(), first.at("worked_seconds").get<double>());
    } else {
      EXPECT_EQ(lost, first.at("worked_seconds")) << "nothing was committed";
    }
  }
}

TEST_F(DdprunStop, EachNodeThatWantsAReportGetsOne) {
  const auto port = free_port();
  Job zero(workers(1, node(0, port))), one(workers(1, node(1, port, {"--report=" + path("report.json")})));
  ASSERT_TRUE(zero.prints("up round"));
  ASSERT_TRUE(one.prints("up round"));
  zero.kill(SIGTERM);
  EXPECT_EQ(zero.wait(), 75) << zero.err();
  EXPECT_EQ(one.wait(), 75) << one.err();
  const auto report = nlohmann::json::parse(std::ifstream(path("report.json")));
  EXPECT_EQ(report.at("exit_code"), 75);
  EXPECT_EQ(report.at("rounds")[0].at("nodes"), 2);
  EXPECT_THAT(zero.err(), Not(HasSubstr("rounds in"))) << "one round needs no table";
}

TEST_F(DdprunStop, AReportThatCannotBeWrittenIsRefusedAtTheStart) {
  Job job(workers(1, {"--report=" + path("missing/report.json")}));
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("error: the report can't be written"), HasSubstr("where: --report")));
  EXPECT_THAT(job.out(), Not(HasSubstr("up round")));
}

// The folder of the logs becomes a file while workers run: the next round can't have its own.
TEST_F(DdprunStop, WhereALaterRoundGetsNoLogFilesTheJobEndsWithItsWorkersStopped) {
  Job job(workers(2, {"--log-dir=" + path("logs"), "--max-restarts=2"}, {"seats", "die=1"}));
  ASSERT_TRUE(job.prints("up round=0", 2));
  std::filesystem::rename(path("logs"), path("moved"));
  make("logs");
  make("die");
  EXPECT_EQ(job.wait(), 126) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr("rank 1 could not be started"), HasSubstr("log files can't be made")));
  EXPECT_TRUE(job.is_gone_within());
}

// Whatever it is that can't be opened, the other node is told of it.
TEST_F(DdprunStop, WithTooFewDescriptorsBothNodesEndAlike) {
  std::set<std::string> causes;
  for (int limit = 80; limit > 20 && causes.count("pipe for a worker's output") == 0; --limit) {
    SCOPED_TRACE("limit " + std::to_string(limit));
    const auto port = free_port();
    std::vector<std::string> limited{"-c", "ulimit -n " + std::to_string(limit) + "; exec \"$0\" \"$@\"",
                                     built("ddprun")};
    for (const auto& argument : node(1, port, {"--nproc-per-node=4"})) limited.push_back(argument);
    limited.push_back("true");
    Job::Options by_shell;
    by_shell.program = "/bin/sh";
    auto unlimited = node(0, port);
    unlimited.push_back("true");
    Job zero(unlimited), one(limited, by_shell);
    const int code = one.wait();
    EXPECT_TRUE(code == 0 || code == 126) << one.err();
    EXPECT_EQ(zero.wait(), code) << zero.err();
    for (const auto& cause : matches(zero.err(), "cause: ([^:\n]*): Too many open files")) causes.insert(cause[1]);
  }
  EXPECT_EQ(causes.count("socketpair for a worker"), 1u);
}

}  // namespace
}  // namespace ddp::test
