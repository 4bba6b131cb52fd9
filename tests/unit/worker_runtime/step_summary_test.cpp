#include "worker_runtime/metrics/step_summary.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace ddp::metrics {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kMs = 1'000'000;

TEST(StepSummary, SplitsAStepIntoComputeCommunicationAndWaiting) {
  // Rank 1 computes for 5 ms, the others for 2 and 3; the all-reduce then takes 1 ms.
  const std::vector<RankStep> steps{{2 * kMs, 4 * kMs, 10}, {5 * kMs, 1 * kMs, 10}, {3 * kMs, 3 * kMs, 40}};
  const StepReport report = summarize(steps, 3);
  EXPECT_EQ(report.steps, 1U);
  EXPECT_EQ(report.compute, 3333333ns);
  EXPECT_EQ(report.waiting, 1666667ns);
  EXPECT_EQ(report.communication, 1ms);
  EXPECT_DOUBLE_EQ(report.samples_per_second, 60 / 0.006);
  EXPECT_EQ(report.slowest_rank, 1);
  EXPECT_EQ(report.slowest_steps, 1U);
  EXPECT_EQ(report.slowest_behind, 2500us);
  EXPECT_FALSE(report.efficiency);
}

TEST(StepSummary, TheSlowestRankIsThatOfTheMostSteps) {
  // Rank 0 is slower in two steps by 1 ms each, rank 1 in one by 100 ms.
  const std::vector<RankStep> steps{{2 * kMs, 0, 1},   {2 * kMs, 0, 1},   {1 * kMs, 100 * kMs, 1},
                                    {1 * kMs, kMs, 1}, {1 * kMs, kMs, 1}, {101 * kMs, 0, 1}};
  const StepReport report = summarize(steps, 2);
  EXPECT_EQ(report.slowest_rank, 0);
  EXPECT_EQ(report.slowest_steps, 2U);
  EXPECT_EQ(report.slowest_behind, 1ms);
  EXPECT_EQ(report.communication, 0ms);
  EXPECT_EQ(report.waiting, 17ms);
  EXPECT_EQ(report.compute, 18ms);
}

TEST(StepSummary, OfEquallyManyStepsTheLaterRankIsTheSlowest) {
  const std::vector<RankStep> steps{{2 * kMs, 0, 1}, {1 * kMs, 3 * kMs, 1}, {1 * kMs, kMs, 1}, {4 * kMs, 0, 1}};
  EXPECT_EQ(summarize(steps, 2).slowest_rank, 1);
}

TEST(StepSummary, StepsThatARankDidNotMeasureCountOnNone) {
  const std::vector<RankStep> steps{{kNotMeasured, 0, 7}, {kMs, kMs, 1}, {9 * kMs, kMs, 7}, {kMs, kMs, 1}};
  const StepReport report = summarize(steps, 2);
  EXPECT_EQ(report.steps, 1U);
  EXPECT_EQ(report.compute, 1ms);
  EXPECT_DOUBLE_EQ(report.samples_per_second, 1000);
  EXPECT_EQ(summarize(std::vector<RankStep>(3, {kNotMeasured, 0, 0}), 3).steps, 0U);
}

TEST(StepSummary, ThePartsAddUpThoughClocksDiffer) {
  // Waiting can't be longer than finish(), nor anything negative.
  const std::vector<RankStep> steps{{2 * kMs, kMs / 2, 1}, {3 * kMs, kMs / 4, 1}};
  const StepReport report = summarize(steps, 2);
  EXPECT_EQ(report.compute + report.communication + report.waiting, 2875us);
  EXPECT_EQ(report.waiting, 250us);
  EXPECT_EQ(report.communication, 125us);
}

TEST(StepSummary, OneRankWaitsForNone) {
  const std::vector<RankStep> steps{{2 * kMs, kMs, 6}, {4 * kMs, kMs, 6}};
  const StepReport report = summarize(steps, 1);
  EXPECT_EQ(report.compute, 3ms);
  EXPECT_EQ(report.communication, 1ms);
  EXPECT_EQ(report.waiting, 0ms);
  EXPECT_DOUBLE_EQ(report.samples_per_second, 1500);
  EXPECT_EQ(report.slowest_rank, -1);
}

TEST(StepSummary, NothingComesOfNothing) {
  EXPECT_EQ(summarize({}, 0).steps, 0U);
  EXPECT_EQ(summarize({}, 4).steps, 0U);
  const std::vector<RankStep> no_time(2);
  EXPECT_EQ(summarize(no_time, 2).samples_per_second, 0);
}

}  // namespace
}  // namespace ddp::metrics
