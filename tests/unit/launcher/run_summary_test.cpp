#include "launcher/node/run_summary.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <string>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using rendezvous::Ending;
using rendezvous::FinishJob;
using rendezvous::RoundTimes;
using rendezvous::RunReport;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

FinishJob killed() {
  FinishJob verdict;
  verdict.exit_code = 137;
  verdict.cause.emplace();
  verdict.cause->rank = 3;
  verdict.cause->host = "gpu17";
  verdict.cause->ending = {Ending::Kind::killed, SIGKILL, false};
  verdict.cause->after = 25s;
  return verdict;
}

RunReport two_rounds() {
  RunReport report{100s, 75s, 2, {{0, "", 2, 8, 0ms, 0ms, 400ms, 100ms, {}, 50s, 20s}, {}}, 55s};
  report.rounds[1] = {1, "rank 5 exited with code 3", 1, 4, 3ms, 1500ms, 0ms, 100ms, 2s, 25s};
  return report;
}

TEST(RunSummary, TellsHowEachRoundBeganHowLongItWorkedAndWhatEndedIt) {
  EXPECT_EQ(
      run_summary(two_rounds(), killed()),
      "2 rounds in 100 s, 55.0 % of the time in steps that count\n"
      "  round 0: 8 workers on 2 nodes, ready after 500 ms (rendezvous 400 ms, start 100 ms), worked 50 s (20 s of "
      "it lost), until rank 5 exited with code 3\n"
      "  round 1: 4 workers on 1 node, ready after 3.6 s (detect 3 ms, stop 1.5 s, start 100 ms, first step 2 s), "
      "worked 25 s, until rank 3 was killed by SIGKILL after 25 s on host gpu17");
}

TEST(RunSummary, WithoutKnowledgeOfStepsTheirShareIsLeftOut) {
  auto report = two_rounds();
  report.useful.reset();
  EXPECT_THAT(run_summary(report, killed()), HasSubstr("2 rounds in 100 s\n"));
}

TEST(RunSummary, HasTenLinesAtMost) {
  RunReport report{4000s, 2000s, 40, {}};
  for (std::uint32_t round = 8; round < 40; ++round)
    report.rounds.push_back({round, "x\ny", 1, 1, 0ms, 0ms, 0ms, {}, {}, 1s});
  const auto text = run_summary(report, killed());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 9);
  EXPECT_THAT(text, HasSubstr("40 rounds in 66 min; the last 8 were\n  round 32: "));
  EXPECT_THAT(text, HasSubstr("until rank 3 was killed by SIGKILL after 25 s on host gpu17\n  --report=FILE, or "
                              "report.json with --log-dir, has all that this node was told of"));
  report.rounds_count = 8;
  report.rounds.resize(8);
  EXPECT_THAT(run_summary(report, killed()), Not(HasSubstr("--report")));
}

TEST(RunSummary, AReasonIsOneLineOfBoundedLength) {
  auto report = two_rounds();
  report.rounds[1].why = "rank 1 ended (\nerror: x\x1b[2J)" + std::string(1000, 'x');
  const auto text = run_summary(report, killed());
  EXPECT_THAT(text, HasSubstr("until rank 1 ended (\\nerror: x\\x1b[2J)xxx"));
  EXPECT_LT(text.size(), 1000u);
}

TEST(RoundEnds, AreNeverEmpty) {
  RunReport report;
  EXPECT_THAT(round_ends(report, {}), ElementsAre());
  report.rounds.resize(2);
  EXPECT_THAT(round_ends(report, {}), ElementsAre("the next round began", "all workers ended well"));
  report.rounds.resize(1);
  FinishJob verdict;
  verdict.exit_code = 143;
  EXPECT_THAT(round_ends(report, verdict), ElementsAre("ddprun was stopped by SIGTERM"));
  verdict.exit_code = 76;
  EXPECT_THAT(round_ends(report, verdict), ElementsAre("the job ended with exit code 76"));
  verdict.what = "stopped on purpose";
  EXPECT_THAT(round_ends(report, verdict), ElementsAre("stopped on purpose"));
  verdict = killed();
  verdict.cause->message = "no data";
  EXPECT_THAT(round_ends(report, verdict),
              ElementsAre("rank 3 was killed by SIGKILL after 25 s on host gpu17 (no data)"));
}

}  // namespace
}  // namespace ddp::launcher
