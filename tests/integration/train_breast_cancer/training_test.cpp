// What data-parallel training promises, on the real trainer: the same result as one worker with the whole batch, the
// same bits on all ranks, the same bits in every run, and in a run that was stopped and resumed.

#include "examples/train_breast_cancer/trainer.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

using ddp::ProcessGroup;
using ddp::test::results_of_ranks;
using ddp::test::ScratchDirectory;
using train::Options;
using train::Trainer;

constexpr int kSteps = 50;

Options options_for(const ScratchDirectory& scratch, std::size_t batch_size) {
  Options options;
  options.data = DDP_TEST_SOURCE_DIR "/examples/data/breast_cancer.csv";
  options.batch_size = batch_size;
  options.checkpoint_directory = scratch.path();
  options.checkpoint_every = 0;
  return options;
}

// All parameters, one after the other, as bytes.
std::string bytes_of(Trainer& trainer) {
  std::string bytes;
  for (const ddp::Parameter& parameter : trainer.parameters()) {
    bytes.append(static_cast<const char*>(parameter.values.data), parameter.values.bytes());
  }
  return bytes;
}

std::vector<float> floats_of(const std::string& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

std::int64_t hash_of(const std::string& bytes) { return static_cast<std::int64_t>(std::hash<std::string>()(bytes)); }

// The parameters of every rank after some steps.
std::vector<std::string> train_for(int workers, std::size_t batch_size, int steps) {
  const ScratchDirectory scratch;
  return results_of_ranks(workers, [&](ProcessGroup world) {
    Trainer trainer(world, options_for(scratch, batch_size));
    for (int i = 0; i < steps; ++i) trainer.step();
    return bytes_of(trainer);
  });
}

// A mean over N ranks of means over b samples adds the same numbers as a mean over N * b samples in another order, so
// each gradient differs by a few float32 roundings (6e-8 relative each). 50 steps of SGD with momentum carry that on
// and add to it: some 1e-6 on parameters of about 1. A wrong mean, a sample too many or a stale gradient shows at 1e-3.
constexpr double kRounding = 2e-5;

TEST(Training, NWorkersGiveWhatOneGivesWithNTimesTheBatch) {
  for (const int workers : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(workers) + " workers");
    const auto many = floats_of(train_for(workers, 8, kSteps)[0]);
    const auto one = floats_of(train_for(1, 8 * static_cast<std::size_t>(workers), kSteps)[0]);
    const auto untrained = floats_of(train_for(1, 8, 0)[0]);
    ASSERT_EQ(many.size(), one.size());
    double difference = 0;
    double moved = 0;
    for (std::size_t i = 0; i < one.size(); ++i) {
      difference = std::max<double>(difference, std::abs(many[i] - one[i]));
      moved = std::max<double>(moved, std::abs(one[i] - untrained[i]));
    }
    EXPECT_LT(difference, kRounding);
    EXPECT_GT(moved, 0.05) << "nothing was trained, so nothing was compared";
  }
}

TEST(Training, AllRanksHoldTheSameBitsAfterEveryStep) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(4, [&](ProcessGroup world) -> std::string {
    Trainer trainer(world, options_for(scratch, 8));
    for (int i = 0; i < kSteps; ++i) {
      trainer.step();
      const std::vector<std::int64_t> mine = {hash_of(bytes_of(trainer))};
      std::vector<std::int64_t> all(4);
      world.all_gather(mine, all);
      if (all != std::vector<std::int64_t>(4, mine[0])) return "ranks differ after step " + std::to_string(i + 1);
    }
    return "the same";
  });
  EXPECT_THAT(results, testing::Each("the same"));
}

TEST(Training, TwoRunsGiveTheSameBits) {
  const auto first = train_for(3, 8, kSteps);
  EXPECT_EQ(train_for(3, 8, kSteps), first);
  EXPECT_EQ(first[1], first[0]);
}

// Stopped in mid-epoch, at a step that no epoch ends with, resumed by new processes.
TEST(Training, AResumedRunGoesOnWithTheSameBits) {
  for (const int workers : {1, 2}) {
    SCOPED_TRACE(std::to_string(workers) + " workers");
    const ScratchDirectory scratch;
    Options options = options_for(scratch, 8);
    options.epochs = 2;
    options.checkpoint_every = 37;
    const std::string uninterrupted = results_of_ranks(workers, [&](ProcessGroup world) {
      Trainer trainer(world, options);
      trainer.run();
      return bytes_of(trainer);
    })[0];
    // The newest checkpoint is that of the end; without it the run was stopped after its last regular one.
    const auto newest = ddp::CheckpointDirectory(scratch.path()).newest();
    ASSERT_TRUE(newest);
    std::filesystem::remove(newest->path());

    options.resume = true;
    const auto resumed = results_of_ranks(workers, [&](ProcessGroup world) {
      Trainer trainer(world, options);
      if (trainer.position().step % 37 != 0 || trainer.position().step == 0) return std::string("not resumed");
      trainer.run();
      return bytes_of(trainer);
    });
    EXPECT_THAT(resumed, testing::Each(uninterrupted));
  }
}

TEST(Training, ARunGoesOnWithAnotherNumberOfWorkers) {
  const ScratchDirectory scratch;
  Options options = options_for(scratch, 8);
  options.epochs = 1;
  options.checkpoint_every = 31;
  results_of_ranks(1, [&](ProcessGroup world) -> std::string {
    Trainer trainer(world, options);
    trainer.run();
    return {};
  });
  std::filesystem::remove(ddp::CheckpointDirectory(scratch.path()).newest()->path());  // leaves that of step 31
  options.resume = true;
  const auto results = results_of_ranks(3, [&](ProcessGroup world) {
    Trainer trainer(world, options);
    const auto position = trainer.position();
    return std::to_string(position.step) + " " + std::to_string(position.epoch) + " " +
           std::to_string(position.samples);
  });
  // 248 samples were seen; 3 workers see 24 in a step, so they are back at 240.
  EXPECT_THAT(results, testing::Each("31 0 240"));
}

}  // namespace
