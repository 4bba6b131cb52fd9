// What changes from step to step in training, inside run_elastic under the real ddprun: the state of a hook, the shards
// of an optimizer and the position of a sampler, in checkpoints in memory and on disk. Ranks are killed at chosen
// steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <ostream>
#include <set>
#include <string>

#include "tests/integration/elastic_training_job.hpp"
#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Parameters of training without any failure, on three ranks.
std::string bits_of_undisturbed(const std::string& method) {
  const TrainingJob run(method, "memory");
  Job job(run.arguments({"--nproc-per-node=3"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(at_the_end(job.out(), "bits").size(), 1u);
  return *at_the_end(job.out(), "bits").begin();
}

struct Case {
  const char* method;
  const char* store;

  friend void PrintTo(const Case& of, std::ostream* out) { *out << of.method << " " << of.store; }
};

class ElasticTraining : public ::testing::TestWithParam<Case> {};

TEST_P(ElasticTraining, KilledRanksCostNoCommittedStepAndNoSampleAndChangeNoBit) {
  const struct {
    const char* place;
    int step, rank;
  } deaths[] = {{"committed", 5, 1}, {"saving", 9, 0}, {"saved", 14, 2}, {"step", 17, 1}, {"saved", 22, 0}};
  const TrainingJob run(GetParam().method, GetParam().store);
  for (const auto& death : deaths) {
    run.make(std::string(death.place) + "_" + std::to_string(death.step) + "_" + std::to_string(death.rank));
  }
  Job job(run.arguments({"--nproc-per-node=3", "--max-restarts=20"}));
  ASSERT_EQ(job.wait(), 0) << job.out() << job.err();
  int round = 0;
  for (const auto& death : deaths) {
    SCOPED_TRACE(std::string(death.place) + " " + std::to_string(death.step));
    const auto before = of_ranks(job.out(), round, "pid");
    const std::uint64_t committed = run.last_commit(round++);
    const auto after = of_ranks(job.out(), round, "pid");
    ASSERT_EQ(after.size(), 3u) << job.out() << job.err();
    for (const auto& [rank, pid] : after) EXPECT_EQ(pid == before.at(rank), rank != death.rank) << rank;
    for (const auto& [rank, step] : of_ranks(job.out(), round, "step")) EXPECT_GE(step, static_cast<double>(committed));
    for (const auto& [rank, own] : of_ranks(job.out(), round, "own")) EXPECT_EQ(own, 1) << rank;
    for (const auto& [rank, memory] : of_ranks(job.out(), round, "memory"))
      EXPECT_EQ(memory, run.is_in_memory()) << rank;
  }
  EXPECT_EQ(run.last_commit(round), kSteps);
  expect_each_sample_once(run, kSteps * 3 * kBatch);
  EXPECT_EQ(at_the_end(job.out(), "bits"), std::set<std::string>{bits_of_undisturbed(GetParam().method)});
  EXPECT_THAT(job.err(), Not(HasSubstr("error: "))) << "of a checkpoint that the end of a round has stopped";
  EXPECT_TRUE(job.is_gone_within());
}

INSTANTIATE_TEST_SUITE_P(Features, ElasticTraining,
                         ::testing::Values(Case{"power_sgd", "memory"}, Case{"zero2", "memory"}, Case{"zero2", "disk"}),
                         [](const auto& info) { return std::string(info.param.method) + "_" + info.param.store; });

TEST(ElasticTrainingNodes, ANodeThatIsLostLeavesItsShardsToTheOthers) {
  constexpr int kStep = 11;  // in the second epoch
  const TrainingJob run("zero2", "memory");
  const std::string hold = "hold_" + std::to_string(kStep);
  run.make(hold);
  const auto port = free_port();
  Job zero(run.arguments(elastic_node("1:2", 0, port, 2))), one(run.arguments(elastic_node("1:2", 1, port, 1)));
  ASSERT_TRUE(zero.prints("holds ;")) << zero.out() << zero.err();
  const auto before = of_ranks(zero.out(), 0, "pid");
  ASSERT_EQ(before.size(), 2u) << "of three ranks";
  one.kill(SIGKILL);
  EXPECT_TRUE(one.is_gone_within());
  const std::uint64_t committed = run.last_commit(0);
  run.remove(hold);
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(of_ranks(zero.out(), 1, "pid"), before);
  for (const auto& [rank, size] : of_ranks(zero.out(), 1, "size")) EXPECT_EQ(size, 2) << rank;
  for (const auto& [rank, step] : of_ranks(zero.out(), 1, "step"))
    EXPECT_GE(step, static_cast<double>(committed)) << rank;
  for (const auto& [rank, memory] : of_ranks(zero.out(), 1, "memory")) EXPECT_EQ(memory, 1) << rank;
  for (const auto& [rank, own] : of_ranks(zero.out(), 1, "own")) EXPECT_EQ(own, 0) << rank;
  expect_each_sample_once(run, run.trained().size());
  EXPECT_EQ(at_the_end(zero.out(), "bits").size(), 1u);
  const double first = of_ranks(zero.out(), 0, "loss").at(0), middle = of_ranks(zero.out(), 1, "loss").at(0);
  const double last = std::stod(*at_the_end(zero.out(), "loss").begin());
  EXPECT_LT(middle, 0.9 * first);
  EXPECT_LT(last, 0.9 * middle);
}

}  // namespace
}  // namespace ddp::test
