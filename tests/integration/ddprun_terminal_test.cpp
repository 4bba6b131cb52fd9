// ddprun at a terminal: what a person types and sees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/screen.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Job::Options kTerminal{{}, true};
TEST(DdprunTerminal, WorkersHaveTerminalsOfItsSize) {
  Job job(shell(1, "[ -t 1 ] && [ -t 2 ] && stty size <&1"), kTerminal);
  EXPECT_EQ(job.wait(), 0) << job.out();
  EXPECT_THAT(job.out(), HasSubstr("24 80"));
}

TEST(DdprunTerminal, AResizeReachesTheWorkers) {
  Job job(shell(1, "trap 'stty size <&1' WINCH; echo ready; " + kWaitForSignals), kTerminal);
  ASSERT_TRUE(job.prints("ready"));
  job.resize_terminal(50, 132);
  EXPECT_TRUE(job.prints("50 132")) << job.out();
}

TEST(DdprunTerminal, ARankBeforeTheLinesIsOffTheWorkersWidth) {
  Job job(shell(2, "trap 'stty size <&1' WINCH; stty size <&1; " + kWaitForSignals), kTerminal);
  EXPECT_TRUE(job.prints("24 76", 2)) << job.out();  // "[0] "
  job.resize_terminal(50, 132);
  EXPECT_TRUE(job.prints("50 128", 2)) << job.out();
  Job as_before(shell(2, "stty size <&1", {"--no-prefix"}), kTerminal);
  EXPECT_EQ(as_before.wait(), 0);
  EXPECT_EQ(as_before.out(), "24 80\r\n24 80\r\n");
}

TEST(DdprunTerminal, LinesGetTheirRankOnlyWhenSeveralWorkersPrint) {
  {
    Job job(shell(3, "[ $RANK != 0 ] || echo hello"), kTerminal);
    EXPECT_EQ(job.wait(), 0);
    EXPECT_EQ(job.out(), "hello\r\n");
  }
  {
    Job job(shell(2, "echo hello $RANK; echo again $RANK"), kTerminal);
    EXPECT_EQ(job.wait(), 0);
    EXPECT_TRUE(job.out().find("[0] again 0\r\n") != std::string::npos ||
                job.out().find("[1] again 1\r\n") != std::string::npos)
        << job.out();
  }
  {
    Job job(shell(2, "echo hello $RANK", {"--no-prefix"}), kTerminal);
    EXPECT_EQ(job.wait(), 0);
    EXPECT_THAT(job.out(), Not(HasSubstr("[")));
  }
}

TEST(DdprunTerminal, AProgressBarIsShownAsItIsDrawn) {
  Job job(shell(1, "printf '\\r 50%%'; " + kStay), kTerminal);
  EXPECT_TRUE(job.prints("\r 50%"));  // with no newline behind it
}

// Named pipes, on which workers wait until the test lets them go on.
class Gates {
 public:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  void make(const std::string& name) const { ASSERT_EQ(::mkfifo(path(name).c_str(), 0600), 0); }
  void open(const std::string& name) const { std::ofstream(path(name)) << "go\n"; }  // waits for the worker

 private:
  ScratchDirectory folder_;
};

// As tqdm draws with `position=RANK`, in several writes.
TEST(DdprunTerminal, BarsAtPositionsOfTheirOwnStandBelowEachOther) {
  Gates gates;
  for (const auto* name : {"10", "11", "12", "20", "21", "22"}) gates.make(name);
  Job job(shell(3, "for step in 1 2; do read go < " + gates.path("$step$RANK") +
                       "; i=0; while [ $i -lt $RANK ]; do echo; i=$((i+1)); done; "
                       "printf '\\rstep %d of 2' $step; "
                       "i=0; while [ $i -lt $RANK ]; do printf '\\033[A'; i=$((i+1)); done; "
                       "[ $step = 2 ] || echo line $RANK >&2; done; " +
                       kStay),
          kTerminal);
  for (const std::string step : {"1", "2"})
    for (const std::string rank : {"2", "0", "1"}) {
      gates.open(step + rank);
      EXPECT_TRUE(job.prints(step == "1" ? "line " + rank : "[" + rank + "] step 2 of 2")) << job.out();
    }
  Screen screen;
  screen << job.out();
  const auto rows = screen.rows();
  ASSERT_GE(rows.size(), 3u);
  EXPECT_EQ(std::vector<std::string>(rows.end() - 3, rows.end()),
            (std::vector<std::string>{"[0] step 2 of 2", "[1] step 2 of 2", "[2] step 2 of 2"}))
      << job.out();
  for (const std::string line : {"line 0", "line 1", "line 2"})
    EXPECT_EQ(std::count_if(rows.begin(), rows.end(), [&](const auto& row) { return row.ends_with(line); }), 1) << line;
}

TEST(DdprunTerminal, APromptIsShownOnceThoughOthersPrint) {
  Gates gates;
  gates.make("line");
  Job job(shell(2,
                "if [ $RANK = 0 ]; then printf 'name? '; read name; echo hello $name; "
                "else read go < " +
                    gates.path("line") + "; echo line; echo line; fi"),
          kTerminal);
  ASSERT_TRUE(job.prints("name? "));
  gates.open("line");
  ASSERT_TRUE(job.prints("line", 2));
  job.type("world\n");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.out(), HasSubstr("hello world"));
  EXPECT_EQ(job.out().find("name? "), job.out().rfind("name? ")) << job.out();
}

TEST(DdprunTerminal, TypedLinesReachRankZero) {
  Job job(shell(2, "if [ $RANK = 0 ]; then printf 'name? '; read name; echo hello $name; fi"), kTerminal);
  ASSERT_TRUE(job.prints("name? "));
  job.type("world\n");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.out(), HasSubstr("hello world"));
}

TEST(DdprunTerminal, CtrlCStopsTheJobAndASecondOneKillsIt) {
  Job job(shell(2, "trap 'echo caught' INT; echo ready; " + kWaitForSignals), kTerminal);
  ASSERT_TRUE(job.prints("ready", 2));
  job.type("\x03");
  ASSERT_TRUE(job.prints("caught", 2)) << job.out();
  EXPECT_TRUE(becomes_true([&] {
    job.type("\x03");
    return process_state(job.pid()) == 'Z' || process_state(job.pid()) == 0;
  }));
  EXPECT_EQ(job.wait(), 130);
  EXPECT_TRUE(job.is_gone_within());
}

TEST(DdprunTerminal, CtrlZStopsTheWholeTreeAndContinuingGoesOn) {
  Job job(shell(2,
                "setsid sh -c 'echo pid_stray_'$RANK' $$; exec tail -f /dev/null' & "
                "trap 'echo continued' CONT; echo pid_$RANK $$; " +
                    kWaitForSignals),
          kTerminal);
  std::vector<pid_t> tree;
  for (const auto* label : {"pid_0 ", "pid_1 ", "pid_stray_0 ", "pid_stray_1 "}) {
    tree.push_back(static_cast<pid_t>(job.number_after(label)));
    ASSERT_GT(tree.back(), 0) << label << job.out();
  }
  job.type("\x1a");
  ASSERT_TRUE(job.waits_stopped());
  for (const pid_t pid : tree)
    EXPECT_TRUE(becomes_true([&] { return process_state(pid) == 'T'; })) << pid;  // a busy one takes a moment
  job.kill(SIGCONT);
  EXPECT_TRUE(job.prints("continued", 2)) << job.out();
  for (const pid_t pid : tree) EXPECT_TRUE(becomes_true([&] { return process_state(pid) != 'T'; })) << pid;
  job.kill(SIGKILL);
  EXPECT_TRUE(job.is_gone_within());
}

}  // namespace
}  // namespace ddp::test
