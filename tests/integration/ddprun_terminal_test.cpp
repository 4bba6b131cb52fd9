// ddprun at a terminal: what a person types and sees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/integration/job.hpp"

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
