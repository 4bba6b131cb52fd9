#include "launcher/node/job_summary.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using rendezvous::describe_duration;
using rendezvous::Ending;
using rendezvous::FailureReport;
using rendezvous::FinishJob;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

FailureReport failure_of(Ending ending, std::chrono::milliseconds after = 12min) {
  FailureReport failure;
  failure.rank = 5;
  failure.host = "gpu17";
  failure.pid = 41822;
  failure.program = "./train";
  failure.ending = ending;
  failure.round = 3;
  failure.after = after;
  return failure;
}

FinishJob verdict_on(const FailureReport& failure) {
  FinishJob verdict;
  verdict.exit_code = 1;
  verdict.cause = failure;
  return verdict;
}

TEST(Summary, SaysWhatWhereAndWhatToTry) {
  auto failure = failure_of({Ending::Kind::killed, SIGKILL, false});
  failure.stderr_tail = {"step 4", "out of memory"};
  failure.stderr_file = "logs/x/round_3/rank_5/stderr.log";
  auto verdict = verdict_on(failure);
  verdict.stopped = 7;
  verdict.world_size = 8;
  verdict.restarts_max = 3;
  EXPECT_EQ(job_summary(verdict),
            "error: rank 5 was killed by SIGKILL after 12 min; the other 7 ranks were stopped\n"
            "where: host gpu17, pid 41822, round 3, ./train\n"
            "its stderr ended with:\n"
            "  | step 4\n"
            "  | out of memory\n"
            "all of its stderr: logs/x/round_3/rank_5/stderr.log on gpu17\n"
            "try:   `dmesg | grep -i oom` on gpu17: running out of memory ends a process this way\n");
}

TEST(Summary, SaysWhatWasDecidedBecauseOfTheCause) {
  auto verdict = verdict_on(failure_of({Ending::Kind::exited, 3, false}));
  verdict.exit_code = 76;
  verdict.what = "3 rounds in a row failed";
  EXPECT_THAT(job_summary(verdict),
              HasSubstr("error: rank 5 ended with exit code 3 after 12 min; 3 rounds in a row failed\n"));
}

TEST(Summary, SaysThatTheCauseIsNotCertain) {
  auto verdict = verdict_on(failure_of({Ending::Kind::exited, 1, false}));
  verdict.is_cause_certain = false;
  verdict.stopped = 1;
  verdict.world_size = 3;
  EXPECT_THAT(
      job_summary(verdict),
      HasSubstr("error: rank 5 ended with exit code 1 after 12 min (not certain); one other rank was stopped\n"));
}

TEST(Summary, TellsTheCauseFromWhatFollowedIt) {
  auto verdict = verdict_on(failure_of({Ending::Kind::killed, SIGKILL, false}));
  auto later = failure_of({Ending::Kind::exited, 1, false}, 12min);
  later.rank = 2;
  later.host = "gpu03";
  later.message = "ConnectionResetError: peer closed";
  verdict.consequences = {later};
  verdict.stopped = 2;
  verdict.world_size = 4;
  const auto text = job_summary(verdict);
  EXPECT_THAT(text, HasSubstr("after 12 min; 2 other ranks were stopped\n"));
  EXPECT_THAT(text,
              HasSubstr("after it:  rank 2 ended with exit code 1 after 12 min (ConnectionResetError: peer closed), "
                        "host gpu03\n"));
}

TEST(Summary, SaysWhatWasSeenBeforeTheCause) {
  auto verdict = verdict_on(failure_of({Ending::Kind::killed, SIGKILL, false}));
  verdict.cause->job_time = 3000ms;
  auto first = failure_of({Ending::Kind::exited, 1, false}, 1400ms);
  first.rank = 2;
  first.host = "gpu03";
  first.job_time = 2200ms;
  auto other = first;
  other.rank = 3;
  verdict.consequences = {first, other};
  verdict.seen_first = 2;
  EXPECT_THAT(
      job_summary(verdict),
      HasSubstr("seen first (a consequence, 800 ms before the cause): rank 2 ended with exit code 1 after 1.4 s, "
                "host gpu03\n"
                "after that: rank 3 ended with exit code 1 after 1.4 s, host gpu03\n"));
  verdict.is_cause_certain = false;
  EXPECT_THAT(job_summary(verdict),
              HasSubstr("\nseen first (probably a consequence, 800 ms before the cause): rank 2 "));
}

TEST(Summary, CarriesTheWorkersOwnMessage) {
  auto failure = failure_of({Ending::Kind::exited, 1, false}, 1500ms);
  failure.message = "ValueError: no data";
  const auto text = job_summary(verdict_on(failure));
  EXPECT_THAT(text, HasSubstr("error: rank 5 ended with exit code 1 after 1.5 s\n"));
  EXPECT_THAT(text, HasSubstr("cause: ValueError: no data\n"));
  EXPECT_THAT(text, HasSubstr("--max-restarts=N"));
}

TEST(Summary, SaysWhatTheGpusReported) {
  auto failure = failure_of({Ending::Kind::killed, SIGABRT, false});
  failure.message = "CUDA error: unknown error";
  failure.gpu_faults = "GPU 3 reported XID 79 (the GPU has fallen off the bus) 400 ms before";
  const auto text = job_summary(verdict_on(failure));
  EXPECT_THAT(text, HasSubstr("cause: CUDA error: unknown error\ngpus:  " + failure.gpu_faults + "\n"));
  EXPECT_THAT(text,
              HasSubstr("\ntry:   look at what the GPU reported, above; `nvidia-smi -q` on gpu17 shows its state"));
}

TEST(Summary, CommandsToCopyTakeAProgramForOneWord) {
  auto failure = failure_of({Ending::Kind::not_started, ENOENT, false});
  failure.program = "it's; rm -rf ~";
  EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr("`ls -l 'it'\\''s; rm -rf ~'`"));
  failure.program = "/opt/x-1.0/tr\xc3\xa4in";
  EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr("`ls -l " + failure.program + "`"));
}

TEST(Summary, NoTextOfOthersCanForgeALine) {
  const std::string forged =
      "x\nwhere: here\ntry:   `rm -rf ~`\x1b[2J\xc2\x9b"
      "2J\xe2\x80\xa8\xe2\x80\xae\x9b";
  const std::string shown = "x\\nwhere: here\\ntry:   `rm -rf ~`\\x1b[2J\\u009b2J\\u2028\\u202e\\x9b";
  for (const auto& ending : {Ending{Ending::Kind::exited, 1, false}, Ending{Ending::Kind::not_started, ENOENT, false},
                             Ending{Ending::Kind::killed, SIGKILL, false}}) {
    auto failure = failure_of(ending);
    failure.host = failure.program = failure.message = failure.stderr_file = failure.gpu_faults = failure.killed_for =
        forged;
    failure.stderr_tail = {forged};
    auto verdict = verdict_on(failure);
    verdict.what = forged;
    verdict.consequences = {failure};
    const auto text = job_summary(verdict);
    EXPECT_THAT(text, HasSubstr("; " + shown + "\nwhere: host " + shown));
    EXPECT_THAT(text, HasSubstr("\ncause: " + shown + "\n"));
    EXPECT_THAT(text, HasSubstr("\n  | " + shown + "\n"));
    EXPECT_THAT(text, HasSubstr("\nall of its stderr: " + shown + " on " + shown + "\n"));
    EXPECT_THAT(text, HasSubstr(" (" + shown + "), host " + shown + "\n"));
    for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
  }
  FinishJob verdict;
  verdict.what = forged;
  EXPECT_EQ(job_summary(verdict), shown + "\n");
  verdict.try_this = forged;
  EXPECT_EQ(job_summary(verdict), "error: " + shown + "\nwhere: between the nodes of the job\ntry:   " + shown + "\n");
}

TEST(Summary, WhatToTryFitsTheEnding) {
  const auto text = [](int code, std::vector<std::string> tail) {
    auto failure = failure_of({Ending::Kind::exited, code, false});
    failure.stderr_tail = std::move(tail);
    return job_summary(verdict_on(failure));
  };
  EXPECT_THAT(text(1, {"usage: x"}), HasSubstr("try:   read its stderr above"));
  EXPECT_THAT(text(2, {"usage: x"}), HasSubstr("wrong use"));
  EXPECT_THAT(text(2, {"usage: x"}), Not(HasSubstr("--max-restarts")));
  EXPECT_THAT(text(1, {}), HasSubstr("wrote nothing to stderr"));
}

TEST(Summary, AFullDiskExplainsAnEmptyLog) {
  auto failure = failure_of({Ending::Kind::exited, 1, false});
  failure.stderr_file = "/logs/stderr.log";
  failure.stderr_lost = "No space left on device";
  auto text = job_summary(verdict_on(failure));
  EXPECT_THAT(
      text, HasSubstr("its stderr, as far as the disk took it: /logs/stderr.log on gpu17 (No space left on device)\n"));
  EXPECT_THAT(text, HasSubstr("try:   free some space on the disk of its log"));
  EXPECT_THAT(text, Not(HasSubstr("wrote nothing")));
  failure.stderr_tail = {"the beginning"};
  text = job_summary(verdict_on(failure));
  EXPECT_THAT(text, HasSubstr("as far as the disk took it"));
  EXPECT_THAT(text, HasSubstr("try:   read its stderr above"));
}

TEST(Summary, AnExceptionThatNobodyCaughtIsTheCause) {
  const struct {
    std::vector<std::string> tail;
    const char* cause;
  } cases[] = {
      {{"step 3", "terminate called after throwing an instance of 'std::runtime_error'", "  what():  no data"},
       "\ncause: std::runtime_error: no data\n"},
      {{"terminate called after throwing an instance of 'int'"}, "\ncause: int\n"},
      {{"libc++abi: terminating due to uncaught exception of type std::runtime_error: no data"},
       "\ncause: std::runtime_error: no data\n"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.cause);
    auto failure = failure_of({Ending::Kind::killed, SIGABRT, true});
    failure.stderr_tail = c.tail;
    EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr(c.cause));
    EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr("the exception above says what failed"));
    failure.message = "its own words";
    EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr("\ncause: its own words\n"));
  }
}

TEST(Summary, APythonProgramThatCrashesIsAskedForItsOwnTrace) {
  auto failure = failure_of({Ending::Kind::killed, SIGSEGV, false});
  EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr("`gdb ./train core`"));
  for (const char* program : {"train.py", "python3", "/usr/bin/python3.11", "python"}) {
    failure.program = program;
    EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr("`export PYTHONFAULTHANDLER=1`")) << program;
  }
  failure.program = "my_module";
  failure.runs_python = true;
  EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr("`export PYTHONFAULTHANDLER=1`"));
  failure.stderr_tail = {"Fatal Python error: Segmentation fault", "Current thread 0x00007f05de5ebb80:"};
  EXPECT_THAT(job_summary(verdict_on(failure)),
              AllOf(Not(HasSubstr("PYTHONFAULTHANDLER")), HasSubstr("its stderr shows where each Python thread was")));
  failure.stderr_tail.clear();
  failure.program = "python-like";
  failure.runs_python = false;
  EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr("`gdb python-like core`"));
}

TEST(Summary, WhoLeftForAnotherRankIsNotAskedForItsOwnReason) {
  auto failure = failure_of({Ending::Kind::exited, 1, false});
  failure.accused = {1};
  EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr("try:   look at rank 1, for which it left"));
  failure.accused = {1, 6};
  EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr("try:   look at ranks 1, 6, for which it left"));
}

TEST(Summary, LineEndsOfWindowsInAScriptAreNamed) {
  auto failure = failure_of({Ending::Kind::exited, 127, false});
  for (const char* line : {"run.sh: line 2: $'\\r': command not found", "python: can't open file '/a/p.py\r'",
                           "env: 'python3\r': No such file or directory", "x.sh: 1: set: Illegal option -",
                           ": invalid option", ": not found", "': [Errno 2] No such file or directory"}) {
    failure.stderr_tail = {line};
    EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr("end with CR LF")) << line;
  }
}

TEST(Summary, AShellsUnfinishedBlockMayComeFromLineEndsOfWindows) {
  auto failure = failure_of({Ending::Kind::exited, 2, false});
  for (const char* line : {"x.sh: line 4: syntax error: unexpected end of file",
                           "x.sh: 4: Syntax error: end of file unexpected (expecting \"then\")",
                           "x.sh: 1: Syntax error: word unexpected (expecting \"do\")"}) {
    failure.stderr_tail = {line};
    EXPECT_THAT(job_summary(verdict_on(failure)),
                AllOf(HasSubstr("try:   `file SCRIPT`: if its lines end with CR LF"), Not(HasSubstr("wrong use"))))
        << line;
  }
}

TEST(Summary, AKillIsOnlyTakenForWantOfMemoryWhereNothingTellsOtherwise) {
  auto failure = failure_of({Ending::Kind::killed, SIGKILL, false});
  EXPECT_THAT(job_summary(verdict_on(failure)), HasSubstr("try:   `dmesg | grep -i oom` on gpu17"));
  failure.ending.out_of_memory = true;
  EXPECT_THAT(job_summary(verdict_on(failure)), AllOf(HasSubstr("rank 5 was killed by SIGKILL (out of memory) after"),
                                                      HasSubstr("try:   let each rank take less memory")));
  failure.ending.out_of_memory = false;
  EXPECT_THAT(job_summary(verdict_on(failure)),
              AllOf(HasSubstr("rank 5 was killed by SIGKILL after"), HasSubstr("try:   find who sent it")));
}

TEST(Summary, AProgramThatNeverRanHasNoPidAndNoTime) {
  auto failure = failure_of({Ending::Kind::not_started, ENOENT, false});
  failure.pid = 0;
  const auto text = job_summary(verdict_on(failure));
  EXPECT_THAT(text, HasSubstr("could not be started: No such file"));
  EXPECT_THAT(text, Not(HasSubstr("after 12 min")));
  EXPECT_THAT(text, Not(HasSubstr("pid")));
}

TEST(Summary, OfWhatNoWorkerCaused) {
  FinishJob verdict;
  EXPECT_EQ(job_summary(verdict), "");
  verdict.what = "node 1 (host gpu03) was lost: it closed the connection";
  verdict.try_this = "look at that host";
  EXPECT_EQ(job_summary(verdict),
            "error: node 1 (host gpu03) was lost: it closed the connection\n"
            "where: between the nodes of the job\n"
            "try:   look at that host\n");
}

TEST(Summary, DescribesDurations) {
  EXPECT_EQ(describe_duration(7ms), "7 ms");
  EXPECT_EQ(describe_duration(3200ms), "3.2 s");
  EXPECT_EQ(describe_duration(30s), "30 s");
  EXPECT_EQ(describe_duration(12min), "12 min");
  EXPECT_EQ(describe_duration(2h + 59min + 59s), "2 h 59 min");
  EXPECT_EQ(describe_duration(999ms), "999 ms");
}

}  // namespace
}  // namespace ddp::launcher
