// What changes from step to step in training, inside run_elastic under the real ddprun: the state of a hook, the shards
// of an optimizer and the position of a sampler, in checkpoints in memory and on disk. Ranks are killed at chosen
// steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstddef>
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
    expect_saved_state(run, job.out(), round);
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

TEST_P(ElasticTraining, AReplacementThatDiesWhileItLoadsIsReplacedAgain) {
  const std::string undisturbed = bits_of_undisturbed(GetParam().method);
  for (const std::string place : {"loading_1", "keeping_1"}) {
    SCOPED_TRACE(place);
    const TrainingJob run(GetParam().method, GetParam().store);
    if (place == "keeping_1" && run.is_in_memory() == 0) continue;
    run.make("committed_14_1");
    run.make(place);
    Job job(run.arguments({"--nproc-per-node=3", "--max-restarts=2"}));
    ASSERT_EQ(job.wait(), 0) << job.out() << job.err();
    const auto before = of_ranks(job.out(), 0, "pid"), after = of_ranks(job.out(), 2, "pid");
    ASSERT_EQ(after.size(), 3u) << job.out() << job.err();
    for (const auto& [rank, pid] : after) EXPECT_EQ(pid == before.at(rank), rank != 1) << rank;
    EXPECT_EQ(of_ranks(job.out(), 1, "pid").count(1), 0u) << "it had loaded everything";
    for (const auto& [rank, step] : of_ranks(job.out(), 2, "step")) EXPECT_EQ(step, 14) << rank;
    for (const auto& [rank, own] : of_ranks(job.out(), 2, "own")) EXPECT_EQ(own, 1) << rank;
    expect_saved_state(run, job.out(), 2);
    expect_each_sample_once(run, kSteps * 3 * kBatch);
    EXPECT_EQ(at_the_end(job.out(), "bits"), std::set<std::string>{undisturbed});
  }
}

INSTANTIATE_TEST_SUITE_P(Features, ElasticTraining,
                         ::testing::Values(Case{"power_sgd", "memory"}, Case{"power_sgd", "disk"},
                                           Case{"top_k", "memory"}, Case{"top_k", "disk"}, Case{"zero1", "memory"},
                                           Case{"zero2", "memory"}, Case{"zero2", "disk"}, Case{"local_sgd", "memory"},
                                           Case{"diloco", "memory"}, Case{"diloco", "disk"},
                                           Case{"loss_scaler", "memory"}, Case{"loss_scaler", "disk"},
                                           Case{"top_k_rebuilt", "memory"}, Case{"zero2_rebuilt", "disk"}),
                         [](const auto& info) { return std::string(info.param.method) + "_" + info.param.store; });

// How many samples all steps take: three ranks do those from `three_from` up to `two_from`, and two ranks the others.
std::size_t samples_of_steps(std::uint64_t three_from, std::uint64_t two_from) {
  std::uint64_t samples = 0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const std::uint64_t ranks = step >= three_from && step < two_from ? 3 : 2;
    samples += std::min(ranks * kBatch, kSamples - samples % kSamples);  // a step ends with the epoch
  }
  return samples;
}

class ElasticTrainingNodes : public ::testing::TestWithParam<Case> {};

// Two ranks, then three, then two again.
TEST_P(ElasticTrainingNodes, ShardsAreLaidOutAnewForANodeThatComesAndForTheOthersAfterItIsLost) {
  const TrainingJob run(GetParam().method, GetParam().store);
  const std::string first_hold = "hold_11", second_hold = "hold_19";  // within epochs
  for (const std::string& hold : {first_hold, second_hold}) run.make(hold);
  const auto port = free_port();
  const auto node = [&](int rank, int workers) {
    std::vector<std::string> options = elastic_node("1:2", rank, port, workers);
    options.push_back("--rdzv-conf=last_call_timeout=1,is_host=" + std::string(rank == 0 ? "1" : "0"));
    return run.arguments(options);
  };
  Job zero(node(0, 2));
  ASSERT_TRUE(zero.prints("holds ;")) << zero.out() << zero.err();
  const auto before = of_ranks(zero.out(), 0, "pid");
  ASSERT_EQ(before.size(), 2u);
  Job one(node(1, 1));
  ASSERT_TRUE(zero.prints("leaves round=0 ;")) << zero.out() << zero.err();
  const std::uint64_t committed_by_two = run.last_commit(0);
  run.remove(first_hold);
  ASSERT_TRUE(zero.prints("holds ;", 2)) << zero.out() << zero.err();
  ASSERT_TRUE(one.prints("begin round=1 "));  // what a ddprun that is killed has not passed on is lost
  one.kill(SIGKILL);
  EXPECT_TRUE(one.is_gone_within());
  const std::uint64_t committed_by_three = run.last_commit(1);
  run.remove(second_hold);
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  const std::string out = zero.out() + one.out();
  for (const int round : {1, 2}) {
    SCOPED_TRACE("round " + std::to_string(round));
    const std::size_t size = round == 1 ? 3 : 2;
    EXPECT_EQ(of_ranks(zero.out(), round, "pid"), before);
    EXPECT_EQ(of_ranks(out, round, "pid").size(), size);
    for (const auto& [rank, its] : of_ranks(out, round, "size")) EXPECT_EQ(its, size) << rank;
    for (const auto& [rank, step] : of_ranks(out, round, "step"))
      EXPECT_GE(step, static_cast<double>(round == 1 ? committed_by_two : committed_by_three)) << rank;
    for (const auto& [rank, memory] : of_ranks(out, round, "memory")) EXPECT_EQ(memory, run.is_in_memory()) << rank;
    for (const auto& [rank, own] : of_ranks(out, round, "own")) EXPECT_EQ(own, 0) << rank;
    expect_saved_state(run, out, round);
  }
  const auto first_step_of = [&](int round) {
    return static_cast<std::uint64_t>(of_ranks(zero.out(), round, "step").at(0));
  };
  const std::size_t samples = samples_of_steps(first_step_of(1), first_step_of(2));
  expect_each_sample_once(run, samples, 2 + 1);  // fewer than ranks, in each of the two rounds
  EXPECT_EQ(run.last_commit(2), kSteps);
  EXPECT_EQ(at_the_end(out, "bits").size(), 1u);
  const double first = of_ranks(zero.out(), 0, "loss").at(0), middle = of_ranks(zero.out(), 1, "loss").at(0);
  const double last = std::stod(*at_the_end(out, "loss").begin());
  EXPECT_LT(middle, 0.9 * first);
  EXPECT_LT(last, 0.9 * middle);
}

INSTANTIATE_TEST_SUITE_P(Features, ElasticTrainingNodes,
                         ::testing::Values(Case{"power_sgd", "memory"}, Case{"top_k", "memory"}, Case{"zero1", "disk"},
                                           Case{"zero2", "memory"}, Case{"zero2", "disk"}, Case{"local_sgd", "memory"},
                                           Case{"diloco", "disk"}, Case{"loss_scaler", "memory"}),
                         [](const auto& info) { return std::string(info.param.method) + "_" + info.param.store; });

}  // namespace
}  // namespace ddp::test
