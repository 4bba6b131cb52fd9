// The example program from outside: what it prints, how it ends, and that it goes on after a worker was killed.

#include "tests/integration/job.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

using ddp::test::built;
using ddp::test::contents_of;
using ddp::test::Job;
using ddp::test::occurrences;
using ddp::test::ScratchDirectory;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
namespace fs = std::filesystem;

const std::string kProgram = built("train_breast_cancer");

double number_after(const std::string& text, const std::string& label) {
  const auto at = text.find(label);
  return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + label.size(), nullptr);
}

class Program : public testing::Test {
 protected:
  struct Result {
    int code = 0;
    std::string out;
    std::string err;
  };

  // The program alone, without a launcher, in a folder of its own.
  Result run(const std::string& arguments) {
    const std::string out = (scratch_.path() / "out").string();
    const std::string err = (scratch_.path() / "err").string();
    const std::string command = "cd " + scratch_.path().string() + " && " + kProgram + " " + arguments + " >" + out +
                                " 2>" + err + " </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents_of(out), contents_of(err)};
  }

  // ddprun's arguments for this program, with its checkpoints in a folder of the test's own.
  std::vector<std::string> job(int workers, const std::vector<std::string>& arguments,
                               const std::vector<std::string>& launcher_options = {}) {
    std::vector<std::string> words = {"--standalone", "--nproc-per-node=" + std::to_string(workers)};
    words.insert(words.end(), launcher_options.begin(), launcher_options.end());
    words.insert(words.end(), {kProgram, "--checkpoint-dir", checkpoints_.string()});
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }

  std::vector<fs::path> checkpoints() const {
    std::vector<fs::path> paths;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(checkpoints_, ignored)) {
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
    }
    return paths;
  }

  // 0 where there is no checkpoint.
  double newest_step() const {
    double newest = 0;
    for (const fs::path& path : checkpoints()) newest = std::max(newest, number_after(path.filename(), "_step_"));
    return newest;
  }

  ScratchDirectory scratch_;
  fs::path checkpoints_ = scratch_.path() / "checkpoints";
};

TEST_F(Program, TrainsAloneAndSavesInTheWorkingDirectory) {
  const Result result = run("--epochs 20");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out,
              StartsWith("1 worker, batch 8 per worker: 56 batches per rank and epoch, 448 samples seen, 7 dropped\n"
                         "epoch  1/20  loss "));
  EXPECT_EQ(occurrences(result.out, "\nepoch "), 20);
  EXPECT_THAT(result.out, Not(HasSubstr("\r"))) << "a bar where there is no terminal";
  EXPECT_GE(number_after(result.out, "\ntest accuracy "), 95);
  EXPECT_THAT(result.out, HasSubstr("\ncheckpoint: checkpoints/checkpoint_"));
  EXPECT_THAT(checkpoints(), testing::SizeIs(2));
  EXPECT_THAT(result.err, IsEmpty());
}

TEST_F(Program, ResumeStartsAfreshGoesOnAndFindsNothingLeftToDo) {
  EXPECT_THAT(run("--resume --epochs 2").out, StartsWith("no checkpoint in checkpoints yet: starting afresh\n"));
  const Result on = run("--resume --epochs 3");
  EXPECT_THAT(on.out, StartsWith("resumed after step 112 from checkpoints/checkpoint_"));
  EXPECT_EQ(occurrences(on.out, "\nepoch "), 1);
  EXPECT_THAT(run("--resume --epochs 3").out, AllOf(StartsWith("resumed after step 168"), Not(HasSubstr("\nepoch "))));
}

TEST_F(Program, WithoutResumeEarlierCheckpointsStayAndAreSpokenOf) {
  run("--epochs 2");
  const std::vector<fs::path> earlier = checkpoints();
  ASSERT_EQ(earlier.size(), 2U);
  const Result afresh = run("--epochs 3 --checkpoint-every 10");
  EXPECT_EQ(afresh.code, 0) << afresh.err;
  EXPECT_THAT(afresh.out, StartsWith("starting afresh beside 2 checkpoints of earlier runs in checkpoints, kept; "
                                     "--resume goes on from the newest\n"));
  EXPECT_THAT(checkpoints(), AllOf(testing::SizeIs(4), testing::IsSupersetOf(earlier)));
  EXPECT_THAT(run("--resume --epochs 3").out, StartsWith("resumed after step 168 "));
}

// As where the clock was set back between two runs: training on without a checkpoint would be for nothing.
TEST_F(Program, ARunWhoseCheckpointsAreSupersededEndsAndSaysSo) {
  ::setenv("DDPRUN_ROUND_ID", "99999999999-0000000000000000-0", 1);
  run("--epochs 2");
  ::unsetenv("DDPRUN_ROUND_ID");
  const Result result = run("--resume --epochs 3");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err,
              AllOf(StartsWith("error: checkpoint checkpoints/checkpoint_"),
                    HasSubstr("_step_168.safetensors was superseded: the newest is checkpoint_99999999999-")));
}

TEST_F(Program, ResumePassesOverABrokenCheckpoint) {
  run("--epochs 2 --checkpoint-every 56");
  std::vector<fs::path> paths = checkpoints();
  ASSERT_EQ(paths.size(), 2U);
  std::sort(paths.begin(), paths.end());  // ..._step_112 before ..._step_56
  fs::resize_file(paths[0], 100);
  EXPECT_THAT(run("--resume --epochs 2").out, AllOf(StartsWith("warning: passing over a checkpoint: can't read "),
                                                    HasSubstr("\nresumed after step 56 ")));
  for (const fs::path& path : checkpoints()) fs::resize_file(path, 10);
  const Result broken = run("--resume");
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.err, HasSubstr("error: no checkpoint in checkpoints can be read"));
}

TEST_F(Program, WrongInputEndsWith2AndSaysWhatWhereAndWhatToTry) {
  const std::string csv = (scratch_.path() / "bad.csv").string();
  std::ofstream(csv) << "2,2,no,yes\n1,2,0\n3,x,1\n";
  run("--epochs 1");  // with a checkpoint of seed 0
  const struct {
    std::string arguments;
    std::string want;
  } cases[] = {
      {"--batch-size 0", "error: --batch-size is 0"},
      {"--batch-size -8", "error: "},
      {"--batch-size many", "error: "},
      {"--batch-size 456", "error: the training part has 455 samples, too few for one step of 456"},
      {"--epochs 0", "error: --epochs is 0"},
      {"--learning-rate 0", "error: --learning-rate is 0"},
      {"--learning-rate nan", "error: --learning-rate is nan"},
      {"--seed 1.5", "error: "},
      {"--bogus", "error: "},
      {"stray", "error: "},
      {"--data nowhere.csv", "error: can't read the data: No such file or directory\nwhere: nowhere.csv\ntry:   "},
      {"--data " + csv, "error: `x` is not a number\nwhere: " + csv + ", line 3, column 2\ntry:   "},
      {"--resume --seed 1", "error: the checkpoint is of a run with another seed (0, this run's is 1)\nwhere: "},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.arguments);
    const Result result = run(c.arguments);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, AllOf(StartsWith(c.want), HasSubstr("\nwhere: "), HasSubstr("\ntry:   ")));
    EXPECT_THAT(result.out, IsEmpty());
  }
}

TEST_F(Program, AnErrorThatAllRanksShareIsPrintedOnce) {
  for (const char* argument : {"--batch-size=0", "--data=nowhere.csv", "--batch-size=200"}) {
    SCOPED_TRACE(argument);
    Job ranks(job(3, {argument}));
    EXPECT_EQ(ranks.wait(), 2) << ranks.out() << ranks.err();
    const std::string err = "\n" + ranks.err();  // ddprun's own report comes after, and says it again with a margin
    EXPECT_EQ(occurrences(err, "\nerror: can't read the data") + occurrences(err, "\nerror: --batch-size is 0") +
                  occurrences(err, "\nerror: the training part has"),
              1)
        << err;
  }
}

TEST_F(Program, HelpIsPrintedOnce) {
  const Result result = run("--help");
  EXPECT_EQ(result.code, 0);
  for (const char* flag : {"--data", "--batch-size", "--epochs", "--learning-rate", "--seed", "--checkpoint-dir",
                           "--checkpoint-every", "--resume"}) {
    EXPECT_THAT(result.out, HasSubstr(flag));
  }
}

TEST_F(Program, AFullFolderIsAnErrorOfTheProgram) {
  std::ofstream(scratch_.path() / "file") << "in the way";
  const Result result = run("--checkpoint-dir file/checkpoints");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, StartsWith("error: can't make file/checkpoints: "));
}

TEST_F(Program, ReachesItsAccuracyWithOneToEightWorkers) {
  for (int workers = 1; workers <= 8; ++workers) {
    SCOPED_TRACE(std::to_string(workers) + " workers");
    Job ranks(job(workers, {}));
    EXPECT_EQ(ranks.wait(), 0) << ranks.err();
    EXPECT_GE(number_after(ranks.out(), "test accuracy "), 95) << ranks.out();
    EXPECT_EQ(occurrences(ranks.out(), "test accuracy"), 1) << "more than one rank prints";
    if (workers != 2) continue;
    EXPECT_THAT(ranks.out(), HasSubstr("2 workers, batch 8 per worker: 28 batches per rank and epoch, "
                                       "448 samples seen, 7 dropped\n"));
  }
}

TEST_F(Program, DrawsOneBarOnATerminal) {
  Job ranks(job(2, {}), {.environment = {}, .terminal = true});
  EXPECT_EQ(ranks.wait(), 0);
  EXPECT_THAT(ranks.out(), AllOf(HasSubstr("\repoch "), HasSubstr("=] loss "), HasSubstr("test accuracy ")));
  EXPECT_EQ(occurrences(ranks.out(), "100 %"), 1);
  EXPECT_THAT(ranks.out(), Not(HasSubstr("\nepoch "))) << "lines of epochs beside the bar";
}

// The first life of the workers would go on for hours; the second goes on for 20 epochs from where that one ended.
// Without LeakSanitizer, where there is one: it stops a worker's threads at its end, and hangs where ddprun's SIGTERM
// comes just then.
TEST_F(Program, AWorkerKilledInMidTrainingCostsNoMoreThanTheStepsSinceTheLastCheckpoint) {
  const std::string script =
      "epochs=1000000; if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then"
      "  step=$(ls \"$1\" | sed 's/.*_step_//; s/[.].*//' | sort -n | tail -n 1); epochs=$((step / 28 + 20)); fi;"
      "exec \"$0\" --checkpoint-dir \"$1\" --resume --epochs=$epochs --checkpoint-every=50";
  for (const int victim : {0, 1}) {
    SCOPED_TRACE("kill -9 of rank " + std::to_string(victim));
    fs::remove_all(checkpoints_);
    Job ranks(
        {"--standalone", "--nproc-per-node=2", "--max-restarts=1", "sh", "-c", script, kProgram, checkpoints_.string()},
        {.environment = {"ASAN_OPTIONS=detect_leaks=0"}, .terminal = false});
    ASSERT_TRUE(ddp::test::becomes_true([&] { return !checkpoints().empty(); }));
    const double saved = newest_step();
    const pid_t pid = ddp::test::worker_of(ranks, kProgram, victim);
    ASSERT_GT(pid, 0);
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    EXPECT_EQ(ranks.wait(), 0) << ranks.err();

    EXPECT_EQ(occurrences(ranks.out(), "no checkpoint in "), 1) << ranks.out();
    EXPECT_EQ(occurrences(ranks.out(), "resumed after step "), 1) << ranks.out();
    EXPECT_GE(number_after(ranks.out(), "resumed after step "), std::max(saved, 50.0));
    EXPECT_GE(number_after(ranks.out(), "test accuracy "), 95);
  }
}

}  // namespace
