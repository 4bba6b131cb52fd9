// The example program from outside: what it prints, how it ends, and that it goes on when a rank is killed.

#include "tests/integration/job.hpp"
#include "tests/sanitized.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using ddp::test::built;
using ddp::test::contents_of;
using ddp::test::Job;
using ddp::test::kIsSanitized;
using ddp::test::matches;
using ddp::test::occurrences;
using ddp::test::ScratchDirectory;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kProgram = built("train_transformer");

// ddprun's arguments.
std::vector<std::string> job(int ranks, const std::vector<std::string>& arguments,
                             const std::vector<std::string>& launcher_options = {}) {
  std::vector<std::string> words = {"--standalone", "--nproc-per-node=" + std::to_string(ranks)};
  words.insert(words.end(), launcher_options.begin(), launcher_options.end());
  words.push_back(kProgram);
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

// Arguments for a small model.
std::vector<std::string> small(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--layers=1", "--width=32", "--context=32", "--learning-rate=0.01"});
  return arguments;
}

// NaN, which fails every comparison, if there is none.
double last_number_after(const std::string& text, const std::string& label) {
  const auto at = text.rfind(label);
  if (at == std::string::npos) return std::nan("");
  const char* const begin = text.c_str() + at + label.size();
  char* end = nullptr;
  const double number = std::strtod(begin, &end);
  return end == begin ? std::nan("") : number;
}

TEST(TransformerProgram, PrintsRatesLossesAndScalingEfficiencyAndDrawsTheLossCurve) {
  const ScratchDirectory scratch;
  const std::string baseline = "--baseline=" + (scratch.path() / "one.json").string();
  const std::string curve = (scratch.path() / "loss.svg").string();
  Job alone(job(1, small({"--steps=25", baseline})));
  EXPECT_EQ(alone.wait(), 0) << alone.err();

  Job two(job(2, small({"--steps=25", baseline, "--loss-curve=" + curve})));
  EXPECT_EQ(two.wait(), 0) << two.err();
  EXPECT_THAT(two.out(), StartsWith("2 ranks from step 0, "));
  EXPECT_EQ(matches(two.out(),
                    "loss [0-9.]+, step (10|20): [0-9]+ samples/s, efficiency [0-9]+ %; step [0-9.]+ ms: "
                    "compute [^;\n]*; rank [01] was slowest in [^\n]*\n")
                .size(),
            2U)
      << two.out();
  EXPECT_EQ(matches(two.out(), "loss [0-9.]+, step 25\n").size(), 1U) << two.out();
  EXPECT_THAT(contents_of(curve), AllOf(StartsWith("<svg "), HasSubstr("batch 8, 2 ranks, plain</text>")));
}

TEST(TransformerProgram, EachFlagTrains) {
  for (const char* flag : {"--zero2", "--bf16", "--powersgd", "--powersgd=2", "--local-sgd", "--local-sgd=4"}) {
    SCOPED_TRACE(flag);
    Job ranks(job(2, small({"--steps=30", flag})));
    EXPECT_EQ(ranks.wait(), 0) << ranks.err();
    EXPECT_LT(last_number_after(ranks.out(), "loss "), 3.4) << ranks.out();
  }
}

TEST(TransformerProgram, GoesOnFromACheckpointOfAnotherNumberOfRanks) {
  const ScratchDirectory scratch;
  const std::string checkpoints = "--checkpoints=" + (scratch.path() / "saved").string();
  Job two(job(2, small({"--steps=20", "--zero2", checkpoints})));
  EXPECT_EQ(two.wait(), 0) << two.err();
  EXPECT_THAT(two.out(), StartsWith("2 ranks from step 0, "));
  Job three(job(3, small({"--steps=30", "--zero2", checkpoints})));
  EXPECT_EQ(three.wait(), 0) << three.err();
  EXPECT_THAT(three.out(), StartsWith("loaded the checkpoint of step 20, saved by 2 ranks\n3 ranks from step 20, "));
  EXPECT_LT(last_number_after(three.out(), "loss "), last_number_after(two.out(), "loss ")) << three.out();
}

TEST(TransformerProgram, WrongInputEndsWith2AndIsPrintedOnce) {
  const struct {
    std::vector<std::string> arguments;
    std::string want;
  } cases[] = {
      {{"--zero2", "--bf16"}, "--zero2 and --bf16 exclude each other"},
      {{"--powersgd", "--local-sgd"}, "--powersgd and --local-sgd exclude each other"},
      {{"--powersgd=0"}, "--powersgd is 0, not 1 to 64"},
      {{"--local-sgd=0"}, "--local-sgd is 0, not 1 to 1000000"},
      {{"--steps=0"}, "--steps is 0"},
      {{"--width=40"}, "--width is 40, not a multiple of 16"},
      {{"--learning-rate=nan"}, "--learning-rate is nan"},
      {{"--batch-size=3000"}, "the text has 1955 samples of 64 characters, too few for one step of 6000"},
      {{"--data=nowhere.txt", "--elastic"}, "can't read the text: No such file or directory\nwhere: nowhere.txt"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.want);
    Job ranks(job(2, c.arguments));
    EXPECT_EQ(ranks.wait(), 2) << ranks.err();
    // ddprun's own report comes after, and says it again with a margin.
    EXPECT_EQ(occurrences("\n" + ranks.err(), "\nerror: " + c.want), 1) << ranks.err();
  }
}

// Without LeakSanitizer, where there is one: see train_breast_cancer's test of a killed worker.
TEST(TransformerProgram, ElasticRunGoesOnAfterARankIsKilled) {
  constexpr int kSteps = kIsSanitized ? 150 : 300;
  for (const char* flag : {"--zero2", "--local-sgd=4"}) {
    SCOPED_TRACE(flag);
    const ScratchDirectory scratch;
    const std::string curve = (scratch.path() / "loss.svg").string();
    const std::vector<std::string> arguments = {flag, "--elastic", "--steps=" + std::to_string(kSteps),
                                                "--loss-curve=" + curve};
    Job ranks(job(2, small(arguments), {"--max-restarts=1"}), {.environment = {"ASAN_OPTIONS=detect_leaks=0"}});
    ASSERT_TRUE(ranks.prints("2 ranks from step ")) << ranks.err();
    const pid_t victim = ddp::test::worker_of(ranks, kProgram, 0);  // before, as the steps do not wait for it
    const pid_t other = ddp::test::worker_of(ranks, kProgram, 1);
    ASSERT_GT(victim, 0);
    ASSERT_GT(other, 0);
    ASSERT_TRUE(ranks.prints(", step 30")) << ranks.err();
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    ASSERT_TRUE(ranks.prints("2 ranks from step ", 2)) << ranks.out() << ranks.err();
    EXPECT_EQ(::kill(other, 0), 0) << "the other rank was started anew";
    EXPECT_EQ(ranks.wait(), 0) << ranks.err();
    EXPECT_GE(last_number_after(ranks.out(), "loaded the checkpoint of step "), 10) << ranks.out();
    EXPECT_LT(last_number_after(ranks.out(), "loss "), 2.8) << ranks.out();
    const auto points = matches(contents_of(curve), "points=\"([^\"]*)\"");  // "X,Y X,Y ", also of the steps before
    ASSERT_EQ(points.size(), 1U);
    EXPECT_EQ(occurrences(points[0][1], ","), kSteps / 10);
    EXPECT_THAT(points[0][1], Not(HasSubstr("nan")));
  }
}

TEST(TransformerProgram, HelpNamesAllFlags) {
  Job alone({"--help"}, {.environment = {}, .program = kProgram});
  EXPECT_EQ(alone.wait(), 0);
  for (const char* flag :
       {"--data", "--steps", "--batch-size", "--layers", "--width", "--context", "--learning-rate", "--seed",
        "--loss-curve", "--baseline", "--checkpoints", "--zero2", "--bf16", "--powersgd", "--local-sgd", "--elastic"}) {
    EXPECT_THAT(alone.out(), HasSubstr(flag));
  }
}

}  // namespace
