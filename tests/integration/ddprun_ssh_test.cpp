// A job that is started on several hosts from one, by a real ssh and a real sshd on loopback.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "launcher/remote/frames.hpp"
#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/integration/sshd.hpp"

namespace ddp::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

class DdprunSsh : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = Sshd::why_not(); !why.empty()) GTEST_SKIP() << why;
  }

  // ddprun's arguments for a shell script on two hosts. The mark of the test's job goes along, so that
  // Job::processes() finds what runs behind ssh.
  std::vector<std::string> on_hosts(const Sshd& sshd, const std::string& script,
                                    std::vector<std::string> options = {"--hosts=a,b"},
                                    const std::string& configuration = "") const {
    options.push_back(sshd.ssh_arguments(configuration));
    options.insert(options.end(), {"--master-port=" + free_port(), "-x", "JOB_MARK", "sh", "-c", script});
    return options;
  }
};

TEST_F(DdprunSsh, RunsOneJobOnTwoHostsAndShowsHostAndRank) {
  const Sshd sshd;
  Job job(on_hosts(sshd, "echo rank $RANK of $WORLD_SIZE node $GROUP_RANK; echo text >&2", {"--hosts=a:2,b:1"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("a: [0] rank 0 of 3 node 0\n"));
  EXPECT_THAT(job.out(), HasSubstr("a: [1] rank 1 of 3 node 0\n"));
  EXPECT_THAT(job.out(), HasSubstr("b: [2] rank 2 of 3 node 1\n"));
  EXPECT_THAT(job.err(), HasSubstr("b: [2] text\n"));
  EXPECT_THAT(job.err(), Not(HasSubstr("the job is open"))) << "it has a token of its own";
  EXPECT_TRUE(job.is_gone_within());
}

TEST_F(DdprunSsh, EndsWithTheExitCodeOfTheJob) {
  const Sshd sshd;
  Job job(on_hosts(sshd, "[ $RANK = 0 ] || exit 5; " + kStay));
  EXPECT_EQ(job.wait(), 5) << job.err();
  EXPECT_THAT(job.err(), ContainsRegex("rank 1 .*exit code 5"));
  EXPECT_TRUE(job.is_gone_within());
}

TEST_F(DdprunSsh, ReportOfAFailureIsShownOnce) {
  const Sshd sshd;
  // Its first line, and what is before each line.
  const struct {
    const char *option, *prefix, *first;
  } cases[] = {{"--hosts=a,b,localhost", "(a|b|localhost): ", ": error: rank 1 ended with exit code 5"},
               {"--no-prefix", "", "error: rank 1 ended with exit code 5"},
               {"--quiet", "(a|b|localhost): ", ": error: rank 1 ended with exit code 5"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.option);
    Job job(on_hosts(sshd, "[ $RANK = 1 ] && exit 5; " + kStay, {"--hosts=a,b,localhost", c.option}));
    EXPECT_EQ(job.wait(), 5) << job.err();
    const auto first = job.err().find(c.first);
    ASSERT_NE(first, std::string::npos) << job.err();
    EXPECT_THAT(job.err().substr(first), ContainsRegex("where: host .*, round 0"));
    EXPECT_EQ(job.err().find("error: ", first + std::string(c.first).size()), std::string::npos) << job.err();
    const auto last_line = job.err().rfind('\n', job.err().size() - 2) + 1;
    EXPECT_THAT(job.err().substr(last_line), MatchesRegex(std::string(c.prefix) + "try:   .*\n"));
  }
}

// It knows no frame for a report.
TEST_F(DdprunSsh, ReportsOfOlderDdprunsAreShownForEachHost) {
  const Sshd sshd({.login = "printf '[ddprun on this host, protocol 1]\\n'; head -c 1 >/dev/null;"
                            "printf 'e\\000\\000\\000\\013error: old\\nx\\000\\000\\000\\0015'; exit 0"});
  Job job(on_hosts(sshd, "true"));
  EXPECT_EQ(job.wait(), 5) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr("a: error: old\n"), HasSubstr("b: error: old\n")));
}

class DdprunRemoteNode : public ::testing::Test {
 protected:
  // Starts a host's ddprun for a shell script, and sends it these frames before.
  void run(const std::string& frames, const std::string& script) {
    using launcher::FrameKind;
    auto input = encoded(FrameKind::directory, "/") + frames;
    for (const auto& argument : {"--standalone", "--", "sh", "-c", script.c_str()})
      input += encoded(FrameKind::argument, argument);
    input += encoded(FrameKind::start, "1000");
    Job::Options options;
    options.before_exec = [input] {  // it holds both ends, so its stdin never ends
      int ends[2];
      if (::pipe(ends) != 0 || ::write(ends[1], input.data(), input.size()) < 0) ::_exit(1);
      ::dup2(ends[0], 0);
    };
    Job job({"--remote-node"}, options);
    EXPECT_EQ(job.wait(), 0) << job.err();
    ASSERT_EQ(job.out().find(launcher::kRemoteMark), 0u);
    for (const auto& frame : launcher::FrameReader().feed(job.out().substr(launcher::kRemoteMark.size()))) {
      kinds += static_cast<char>(frame.kind);
      (frame.kind == FrameKind::out ? out : frame.kind == FrameKind::report ? report : rest) += frame.bytes;
    }
  }

  std::string kinds, out, report, rest;
};

TEST_F(DdprunRemoteNode, SendsItsReportByItselfJustBeforeItsEnd) {
  run(encoded(launcher::FrameKind::report, ""), "exit 5");
  EXPECT_THAT(kinds, EndsWith("rx"));
  EXPECT_THAT(report, AllOf(StartsWith("error: rank 0 ended with exit code 5"), HasSubstr("\ntry:   ")));
  EXPECT_THAT(rest, Not(HasSubstr("error: ")));
}

TEST_F(DdprunRemoteNode, WritesItsReportToStderrForAnOlderFront) {
  run("", "exit 5");
  EXPECT_EQ(report, "");
  EXPECT_THAT(rest, HasSubstr("error: rank 0 ended with exit code 5"));
}

TEST_F(DdprunRemoteNode, NobodyElseHoldsThePipeOfItsReport) {
  const std::string script =
      "agent=$(sed -n 's/^PPid:.//p' /proc/$PPID/status); "
      "pipe=$(readlink /proc/$agent/fd/$(tr '\\0' '\\n' </proc/$agent/environ | sed -n 's/^DDPRUN_REPORT_FD=//p')); "
      "for pid in $agent $PPID $$; do readlink /proc/$pid/fd/* | grep -cxF \"$pipe\"; done; "
      "echo variable ${DDPRUN_REPORT_FD-none}";
  run(encoded(launcher::FrameKind::report, ""), script);
  EXPECT_EQ(out, "1\n0\n0\nvariable none\n") << rest;
}

TEST_F(DdprunSsh, HostFileGivesTheWorkers) {
  const Sshd sshd;
  const auto file = sshd.folder() + "/machines";
  std::ofstream(file) << "# both\na slots=1\nb slots=2\n";
  Job job(on_hosts(sshd, "echo rank $RANK of $WORLD_SIZE", {"--hostfile=" + file}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("b: [2] rank 2 of 3\n"));
}

TEST_F(DdprunSsh, HostsHaveTheDirectoryAndTheVariablesThatWereNamed) {
  const Sshd sshd;
  Job::Options options;
  options.environment = {"WANTED=two words", "LEFT=here"};
  Job job(on_hosts(sshd, "echo $RANK in $PWD: $WANTED, ${LEFT-none}, $NEW",
                   {"--hosts=a,b", "-x", "WANTED", "-x", "NEW=a 'quoted' $text"}),
          options);
  EXPECT_EQ(job.wait(), 0) << job.err();
  for (const char* rank : {"0", "1"})
    EXPECT_THAT(job.out(), HasSubstr(std::string(rank) + " in " + std::filesystem::current_path().string() +
                                     ": two words, none, a 'quoted' $text\n"));
}

TEST_F(DdprunSsh, TokenIsOnNoCommandLineAndInNoEnvironmentOfAWorker) {
  const Sshd sshd;
  const auto token = std::string(40, 'q') + std::to_string(::getpid());
  const auto file = sshd.folder() + "/token";
  std::ofstream(file) << token << '\n';
  std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  // cat joins words that end in a zero byte with newlines; grep itself has only a part of the token.
  const auto script = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c " +
                      std::string(40, 'q') + std::to_string(::getpid()).substr(0, 1) + "'[0-9]*$'";
  Job job(on_hosts(sshd, script + "; true", {"--hosts=a,b", "--token-file=" + file}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("a: [0] 0\n"));
  EXPECT_THAT(job.out(), HasSubstr("b: [1] 0\n"));
}

TEST_F(DdprunSsh, HostThatIsOutOfReachIsNamedWithSshsReasonAndNothingStarts) {
  const Sshd sshd;
  const auto closed = free_port();
  const auto mark = sshd.folder() + "/started";
  Job job(
      on_hosts(sshd, "touch " + mark, {"--hosts=a,far"}, "Host far\n  HostName 127.0.0.1\n  Port " + closed + "\n"));
  EXPECT_EQ(job.wait(), 77) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("error: 1 host can't be used, so the job has not started\n"));
  EXPECT_THAT(job.err(), HasSubstr("host far: ssh: connect to host 127.0.0.1 port " + closed + ": Connection refused"));
  EXPECT_THAT(job.err(), HasSubstr("try:   `ssh -o BatchMode=yes far "));
  EXPECT_FALSE(std::filesystem::exists(mark));
  EXPECT_TRUE(job.is_gone_within());
}

TEST_F(DdprunSsh, HostKeyThatChangedOrIsUnknownIsToldWithSshsReason) {
  const Sshd sshd;
  const auto with = [&sshd](const std::string& host, const std::string& file) {
    return "Host " + host + "\n  HostName 127.0.0.1\n  UserKnownHostsFile " + sshd.folder() + "/" + file + "\n";
  };
  Job job(on_hosts(sshd, "true", {"--hosts=a,changed,unknown"},
                   with("changed", "other_known_hosts") + with("unknown", "no_known_hosts")));
  EXPECT_EQ(job.wait(), 77) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("error: 2 hosts can't be used"));
  EXPECT_THAT(job.err(), HasSubstr("host changed: Host key verification failed"));
  EXPECT_THAT(job.err(), HasSubstr("changed (ssh): @    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"));
  EXPECT_THAT(job.err(), HasSubstr("host unknown: Host key verification failed"));
}

TEST_F(DdprunSsh, KeyThatIsNotAcceptedIsTold) {
  const Sshd sshd;
  std::filesystem::copy_file(sshd.folder() + "/other_key", sshd.folder() + "/user_key",
                             std::filesystem::copy_options::overwrite_existing);
  Job job(on_hosts(sshd, "true"));
  EXPECT_EQ(job.wait(), 77) << job.err();
  EXPECT_THAT(job.err(), ContainsRegex("host a: .*Permission denied \\(publickey\\)"));
}

TEST_F(DdprunSsh, WhatALoginShellPrintsIsToldApartFromTheJob) {
  const Sshd sshd({.login = "echo Welcome; echo >&2 warning; printf 'no newline'"});
  Job job(on_hosts(sshd, "echo rank $RANK"));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("b: [1] rank 1\n"));
  EXPECT_THAT(job.out(), Not(HasSubstr("Welcome")));
  for (const char* line : {"b (ssh): Welcome\n", "b (ssh): warning\n", "b (ssh): no newline\n"})
    EXPECT_THAT(job.err(), HasSubstr(line));
}

TEST_F(DdprunSsh, QuietShowsNeitherTheLoginShellNorTheRounds) {
  const Sshd sshd({.login = "echo Welcome; echo >&2 warning"});
  Job job(on_hosts(sshd, "echo out $RANK", {"--hosts=a,b", "-q"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.err(), "");
  EXPECT_THAT(job.out(), AllOf(HasSubstr("a: [0] out 0\n"), HasSubstr("b: [1] out 1\n")));
}

TEST_F(DdprunSsh, LoginShellThatEndsIsToldWithItsLastWords) {
  const Sshd sshd({.login = "echo no shell for you; exit 3"});
  Job job(on_hosts(sshd, "true"));
  EXPECT_EQ(job.wait(), 77) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("host b: no ddprun answers there (exit code 3): no shell for you\n"));
}

TEST_F(DdprunSsh, ProgramThatIsMissingOnAHostEndsTheJobWithItsCode) {
  const Sshd sshd;
  Job job({"--hosts=a,b", sshd.ssh_arguments(), "--master-port=" + free_port(), "/no/such/program"});
  EXPECT_EQ(job.wait(), 127) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("b: error: the program /no/such/program does not exist\n"));
}

TEST_F(DdprunSsh, StopSignalEndsTheWorkersOfAllHosts) {
  const Sshd sshd;
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    SCOPED_TRACE(signal_number);
    Job job(on_hosts(sshd, "echo up; " + kStay));
    ASSERT_TRUE(job.prints("] up\n", 2)) << job.err();
    job.kill(signal_number);
    EXPECT_EQ(job.wait(), 128 + signal_number) << job.err();
    EXPECT_TRUE(job.is_gone_within());
  }
}

TEST_F(DdprunSsh, CtrlCAtATerminalEndsTheWorkersOfAllHosts) {
  const Sshd sshd;
  Job::Options options;
  options.terminal = true;
  Job job(on_hosts(sshd, "trap 'echo asked $RANK; exit 0' INT; echo up; " + kWaitForSignals), options);
  ASSERT_TRUE(job.prints("] up", 2)) << job.out();
  job.type("\x03");
  EXPECT_EQ(job.wait(), 130) << job.out();
  EXPECT_THAT(job.out(), HasSubstr("asked 0"));
  EXPECT_THAT(job.out(), HasSubstr("asked 1"));
  EXPECT_TRUE(job.is_gone_within());
}

TEST_F(DdprunSsh, CtrlZSuspendsAJobOnOneHost) {
  const Sshd sshd;
  Job::Options options;
  options.terminal = true;
  Job job(on_hosts(sshd, "echo its pid: $$; trap 'exit 0' INT; " + kWaitForSignals, {"--hosts=a"}), options);
  const auto worker = static_cast<pid_t>(job.number_after("its pid: "));
  ASSERT_GT(worker, 0) << job.out();
  job.type("\x1a");
  EXPECT_TRUE(job.waits_stopped());
  EXPECT_TRUE(becomes_true([worker] { return process_state(worker) == 'T'; })) << process_state(worker);
  job.kill(SIGCONT);
  EXPECT_TRUE(becomes_true([worker] { return process_state(worker) != 'T'; })) << process_state(worker);
  job.kill(SIGINT);
  EXPECT_EQ(job.wait(), 130) << job.out();
}

TEST_F(DdprunSsh, CtrlZSuspendsNoJobOnSeveralHosts) {
  const Sshd sshd;
  Job::Options options;
  options.terminal = true;
  Job job(on_hosts(sshd, "echo up; " + kStay), options);
  ASSERT_TRUE(job.prints("] up", 2)) << job.out();
  job.type("\x1a");
  EXPECT_TRUE(job.prints("ctrl-z suspends no job of several hosts")) << job.out();
  job.type("\x03");
  EXPECT_EQ(job.wait(), 130) << job.out();
}

TEST_F(DdprunSsh, KilledFrontLeavesNoProcessOnAnyHost) {
  const Sshd sshd;
  Job job(on_hosts(sshd, "echo up; " + kStay));
  ASSERT_TRUE(job.prints("] up\n", 2)) << job.err();
  job.kill(SIGKILL);
  EXPECT_EQ(job.wait(), 1000 + SIGKILL);
  EXPECT_TRUE(job.is_gone_within());
}

TEST_F(DdprunSsh, StdinAndItsEndReachRank0Only) {
  const Sshd sshd;
  const auto file = sshd.folder() + "/input";
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += std::to_string(i) + "\n";  // more than all buffers on the way
  std::ofstream(file) << text;
  for (const bool is_pipe : {false, true}) {
    SCOPED_TRACE(is_pipe ? "pipe" : "file");
    Job::Options options;
    options.before_exec = [&file, is_pipe] {
      base::UniqueFd input(::open(file.c_str(), O_RDONLY));
      int ends[2];
      if (is_pipe && ::pipe(ends) == 0) {
        if (::fork() == 0) {
          ::dup2(input.get(), 0);
          ::dup2(ends[1], 1);
          ::close(ends[0]);
          ::execl("/bin/cat", "cat", nullptr);
          ::_exit(1);
        }
        ::close(ends[1]);
        input.reset(ends[0]);
      }
      ::dup2(input.get(), 0);
    };
    Job job(on_hosts(sshd, "echo rank $RANK has $(wc -c) bytes"), options);
    EXPECT_EQ(job.wait(), 0) << job.err();
    EXPECT_THAT(job.out(), HasSubstr("a: [0] rank 0 has " + std::to_string(text.size()) + " bytes\n"));
    EXPECT_THAT(job.out(), HasSubstr("b: [1] rank 1 has 0 bytes\n"));
  }
}

TEST_F(DdprunSsh, Rank0ThatNeverReadsDoesNotHoldUpAStop) {
  const Sshd sshd;
  Job::Options options;
  options.before_exec = [] { ::dup2(::open("/dev/zero", O_RDONLY), 0); };
  Job job(on_hosts(sshd, "echo up; " + kStay), options);
  ASSERT_TRUE(job.prints("] up\n", 2)) << job.err();
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.err();
  EXPECT_TRUE(job.is_gone_within());
}

TEST_F(DdprunSsh, WrongUseIsOneErrorAndStartsNothing) {
  Job job({"--hosts=a,b:x", "true"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.err(), HasSubstr("error: a number of workers from 1 to 4096 is wanted, not ':x'\n"
                                   "where: --hosts=a,b:x\ntry:   "));
}

TEST_F(DdprunSsh, DryRunShowsTheCommandsAndStartsNothing) {
  Job job({"--hosts=a:2,user@b", "--dry-run", "train.py"});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("host a, node 0\n  by      ssh -T -o BatchMode=yes"));
  EXPECT_THAT(job.out(),
              ContainsRegex("host user@b, node 1\n.*-- user@b .*\n  ddprun  .*--node-rank=1 .*-- train.py\n"));
}

TEST_F(DdprunSsh, ThisMachineNeedsNoSsh) {
  Job job({"--hosts=localhost:2", "--ssh-args=-F /does/not/exist", "sh", "-c", "echo rank $RANK"});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("localhost: [1] rank 1\n"));
}

}  // namespace
}  // namespace ddp::test
