// The training loop on forked ranks: what each flag promises of the loss, and of the parameters at the end.

#include "examples/train_transformer/training.hpp"
#include "tests/sanitized.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace {

using ddp::test::kIsSanitized;
using ddp::test::results_of_ranks;
using transformer::Options;
using transformer::Text;
using transformer::Training;
using transformer::TrainingState;

Options small_options() {
  Options options;
  options.data = DDP_TEST_SOURCE_DIR "/examples/data/as_you_like_it.txt";
  options.steps = kIsSanitized ? 30 : 60;
  options.batch_size = 8;
  options.layers = 1;
  options.width = 32;
  options.context = 32;
  options.learning_rate = 0.01;
  return options;
}

struct Outcome {
  std::vector<double> losses;           // of each ten steps
  std::vector<std::string> parameters;  // by rank, as bytes
};

Outcome train(int ranks, const Options& options) {
  const Text text = transformer::read_text(options.data);
  auto results = results_of_ranks(ranks, [&](ddp::ProcessGroup world) {
    TrainingState state(options, text);
    Training{options, text, state}.run(world);
    std::string bytes(reinterpret_cast<const char*>(state.losses.data()), state.losses.size() * sizeof(double));
    for (const ddp::Parameter& parameter : state.model.parameters()) {
      bytes.append(static_cast<const char*>(parameter.values.data), parameter.values.bytes());
    }
    return bytes;
  });
  Outcome outcome;
  outcome.losses.resize((options.steps + transformer::kReportEvery - 1) / transformer::kReportEvery);
  const std::size_t loss_bytes = outcome.losses.size() * sizeof(double);
  for (const std::string& result : results) {
    if (result.size() < loss_bytes) continue;  // the rank has failed, and the test with it
    std::memcpy(outcome.losses.data(), result.data(), loss_bytes);
    outcome.parameters.push_back(result.substr(loss_bytes));
  }
  return outcome;
}

TEST(TransformerTraining, TwoRanksGiveTheLossesOfOneWithTwiceTheBatch) {
  const Outcome two = train(2, small_options());
  Options options = small_options();
  options.batch_size *= 2;
  const Outcome one = train(1, options);
  for (std::size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(two.losses[i], one.losses[i], 1e-4);
  EXPECT_GT(one.losses.front(), 3.4);  // log(68) = 4.2 at the very start
  EXPECT_LT(one.losses.back(), kIsSanitized ? 3.1 : 2.8);
}

// Each flag with two ranks beside a run without flags.
TEST(TransformerTraining, EachFlagEndsNearTheLossOfPlainTrainingWithTheSameParametersOnAllRanks) {
  const Outcome plain = train(2, small_options());
  const struct {
    const char* flag;
    void (*set)(Options& options);
    double tolerance;  // of the last loss
  } cases[] = {
      {"--zero2", [](Options& options) { options.zero2 = true; }, 1e-4},
      {"--bf16", [](Options& options) { options.bf16 = true; }, 0.01},
      {"--powersgd", [](Options& options) { options.powersgd_rank = 4; }, 0.15},
      {"--local-sgd", [](Options& options) { options.local_sgd_period = 8; }, 0.2},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.flag);
    Options options = small_options();
    c.set(options);
    const Outcome outcome = train(2, options);
    EXPECT_NEAR(outcome.losses.back(), plain.losses.back(), c.tolerance);
    ASSERT_EQ(outcome.parameters.size(), 2U);
    EXPECT_TRUE(outcome.parameters[0] == outcome.parameters[1]);
    EXPECT_FALSE(outcome.parameters[0] == plain.parameters[0]) << "the flag changed nothing";
  }
}

// But for --local-sgd, whose last average comes early where a run ends.
TEST(TransformerTraining, ARunThatIsResumedEndsInTheBitsOfOneThatWasNotStopped) {
  const struct {
    const char* flag;
    void (*set)(Options& options);
  } cases[] = {
      {"none", [](Options&) {}},
      {"--zero2", [](Options& options) { options.zero2 = true; }},
      {"--powersgd", [](Options& options) { options.powersgd_rank = 4; }},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.flag);
    const ddp::test::ScratchDirectory scratch;
    Options options = small_options();
    options.steps = 30;
    c.set(options);
    const Outcome whole = train(2, options);
    options.checkpoints = scratch.path() / "saved";
    options.steps = 20;
    train(2, options);
    options.steps = 30;
    const Outcome resumed = train(2, options);
    EXPECT_EQ(resumed.losses, whole.losses);
    EXPECT_TRUE(resumed.parameters == whole.parameters);
  }
}

}  // namespace
