// Options that only show something: what they print can be used, and nothing is started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/integration/job.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(DdprunOptions, ADryRunShowsAllAndStartsNothing) {
  Job job({"--dry-run", "--nproc-per-node=2", "sh", "-c", "echo started"}, {{"PET_MAX_RESTARTS=4"}, false});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.out(), HasSubstr("program   sh -c 'echo started'\n"));
  EXPECT_THAT(job.out(), HasSubstr("TORCHELASTIC_MAX_RESTARTS=4\n"));
  EXPECT_THAT(job.out(), HasSubstr("worker 1  LOCAL_RANK=1  RANK=1"));
  EXPECT_THAT(job.out(), Not(HasSubstr("\nstarted")));
  EXPECT_EQ(job.err(), "");
  EXPECT_EQ(Job({"--dry-run", "./nowhere"}).wait(), 127);
}

TEST(DdprunOptions, WhatTheyShowGoesToStdout) {
  const std::pair<const char*, const char*> cases[] = {{"--help", "usage: ddprun"},
                                                       {"--version", "ddprun "},
                                                       {"--print-man-page", ".TH DDPRUN 1"},
                                                       {"--print-completion=bash", "# Completion of ddprun for bash"},
                                                       {"--print-completion=zsh", "#compdef ddprun"},
                                                       {"--print-completion=fish", "# Completion of ddprun for fish"}};
  for (const auto& [option, begins] : cases) {
    Job job({option});
    EXPECT_EQ(job.wait(), 0) << option;
    EXPECT_THAT(job.out(), StartsWith(begins));
    EXPECT_EQ(job.err(), "");
  }
}

TEST(DdprunOptions, WorkersStartInTheDirectoryThatIsAskedFor) {
  const ScratchDirectory folder;
  std::filesystem::create_directory(folder.path().string() + "/run");
  std::ofstream(folder.path().string() + "/run/where") << "#!/bin/sh\necho at $(/bin/pwd) $PWD\n";
  std::filesystem::permissions(folder.path().string() + "/run/where", std::filesystem::perms::owner_all);
  const auto at = folder.path().string() + "/run";
  Job::Options in_that_folder;
  in_that_folder.before_exec = [&folder] { ASSERT_EQ(::chdir(folder.path().c_str()), 0); };
  // A relative folder, a program and log files; the files stay relative to ddprun's own directory.
  Job job({"--wdir=run", "--nproc-per-node=2", "--log-dir=logs", "--tee=3", "./where"}, in_that_folder);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("0]:at " + at + " " + at + "\n"));
  EXPECT_THAT(job.out(), HasSubstr("1]:at " + at + " " + at + "\n"));
  EXPECT_TRUE(std::filesystem::exists(folder.path().string() + "/logs/latest"));
}

TEST(DdprunOptions, QuietShowsTheProgramsLinesAndNothingElse) {
  const ScratchDirectory folder;
  const auto logs = "--log-dir=" + folder.path().string();
  const std::string script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3; echo out; echo err >&2";
  Job loud(shell(2, script, {"--max-restarts=1", "--no-prefix", "--tee=3", logs}));
  EXPECT_EQ(loud.wait(), 0);
  EXPECT_THAT(loud.err(), AllOf(HasSubstr("ddprun: log files are in "), HasSubstr(": restart 1 of 1 begins in "),
                                HasSubstr("ddprun: 2 rounds in ")))
      << "what is to vanish";
  Job quiet(shell(2, script, {"-q", "--max-restarts=1", "--no-prefix", "--tee=3", logs}));
  EXPECT_EQ(quiet.wait(), 0);
  EXPECT_EQ(quiet.out(), "out\nout\n");
  EXPECT_EQ(quiet.err(), "err\nerr\n");
}

TEST(DdprunOptions, QuietHidesNoErrorAndNoChoiceIsTold) {
  Job failed({"--quiet", "sh", "-c", "echo no data >&2; exit 3"});  // one worker, as no number is given
  EXPECT_EQ(failed.wait(), 3);
  EXPECT_THAT(failed.err(), StartsWith("no data\nerror: rank 0 ended with exit code 3"));
  EXPECT_THAT(failed.err(), Not(HasSubstr("ddprun:")));
  Job stopped(shell(1, "echo up; " + kStay, {"-q"}));
  ASSERT_TRUE(stopped.prints("up"));
  stopped.kill(SIGTERM);
  EXPECT_EQ(stopped.wait(), 143);
  EXPECT_EQ(stopped.err(), "");
  EXPECT_EQ(Job({"-q", "./nowhere"}).wait(), 127);
}

TEST(DdprunOptions, AMissingWorkingDirectoryIsOneErrorAndStartsNothing) {
  Job job({"--wdir=/nowhere/at_all", "sh", "-c", "echo started"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_EQ(job.out(), "");
  EXPECT_EQ(job.err(),
            "error: the working directory /nowhere/at_all does not exist\nwhere: --wdir=/nowhere/at_all\n"
            "try:   `mkdir -p /nowhere/at_all`, or another path\n");
}

TEST(DdprunOptions, AWrongValueEndsWith2InThreeParts) {
  Job job({"--rdzv-conf=join_timeot=5", "true"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_EQ(job.err(),
            "error: --rdzv-conf has no key 'join_timeot'\nwhere: --rdzv-conf=join_timeot=5\n"
            "try:   `join_timeout`; docs/torchrun.md lists all keys\n");
}

}  // namespace
}  // namespace ddp::test
