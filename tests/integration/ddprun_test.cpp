// ddprun from outside: what runs, what it prints, how it ends, and that nothing is ever left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/integration/job.hpp"
#include "tests/seccomp_filter.hpp"

namespace ddp::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

// A process in a session of its own that outlives its parent, and says when it is there.
const std::string kStrayChild = "setsid sh -c 'echo stray; exec tail -f /dev/null' & ";

TEST(Ddprun, EveryWorkerRunsOnceAndLinesStayWhole) {
  Job job(shell(8, "for i in 1 2 3 4 5 6 7 8 9; do printf 'rank %s' $RANK; printf ' line %s\\n' $i; done"));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(std::count(job.out().begin(), job.out().end(), '\n'), 72);
  for (int rank = 0; rank < 8; ++rank)
    for (int line = 1; line <= 9; ++line)
      EXPECT_THAT("\n" + job.out(),
                  HasSubstr("\nrank " + std::to_string(rank) + " line " + std::to_string(line) + "\n"));
  EXPECT_EQ(job.err(), "");
}

TEST(Ddprun, LargeOutputOfManyWorkersArrivesComplete) {
  Job job(shell(4, "i=0; while [ $i -lt 20000 ]; do echo $RANK:$i:abcdefghijklmnopqrstuvwxyz; i=$((i+1)); done"));
  EXPECT_EQ(job.wait(), 0);
  std::istringstream lines(job.out());
  int next[4] = {0, 0, 0, 0};
  for (std::string line; std::getline(lines, line);) {
    const int rank = line.empty() ? -1 : line[0] - '0';
    ASSERT_TRUE(rank >= 0 && rank < 4) << line;
    ASSERT_EQ(line, std::to_string(rank) + ":" + std::to_string(next[rank]++) + ":abcdefghijklmnopqrstuvwxyz");
  }
  for (const int count : next) EXPECT_EQ(count, 20000);
}

TEST(Ddprun, WorkersFindTorchrunsEnvironmentAndNoneOfTheLaunchers) {
  Job job(shell(2, "env", {"--max-restarts=3"}),
          {{"PET_MAX_RESTARTS=9", "DDPRUN_TOKEN=secret", "RANK=77", "KEEP=me"}, false});
  EXPECT_EQ(job.wait(), 0);
  for (const auto* line : {"RANK=0\n", "RANK=1\n", "LOCAL_RANK=1\n", "WORLD_SIZE=2\n", "TORCHELASTIC_MAX_RESTARTS=3\n",
                           "MASTER_ADDR=127.0.0.1\n", "TORCHELASTIC_USE_AGENT_STORE=True\n", "KEEP=me\n"})
    EXPECT_THAT(job.out(), HasSubstr(line));
  for (const auto* text : {"PET_", "secret", "RANK=77"}) EXPECT_THAT(job.out(), Not(HasSubstr(text)));
}

// For Job::Options: standard input that holds these bytes, and then ends.
std::function<void()> input_of(const std::string& bytes) {
  return [bytes] {
    int pipe[2];
    if (::pipe(pipe) != 0 || ::write(pipe[1], bytes.data(), bytes.size()) < 0) std::abort();
    ::dup2(pipe[0], 0);
    ::close(pipe[0]);
    ::close(pipe[1]);
  };
}

TEST(Ddprun, RankZeroReadsTheStandardInputAndItsEndStopsNothing) {
  Job job(shell(2, "while read word; do echo \"rank $RANK read $word\"; done; echo \"rank $RANK is done\""),
          {{}, false, "ddprun", input_of("one\ntwo\n")});
  EXPECT_EQ(job.wait(), 0);
  auto out = job.out();
  const std::string of_rank_1 = "rank 1 is done\n";  // anywhere between the lines of rank 0
  ASSERT_THAT(out, HasSubstr(of_rank_1));
  out.erase(out.find(of_rank_1), of_rank_1.size());
  EXPECT_EQ(out, "rank 0 read one\nrank 0 read two\nrank 0 is done\n");
}

TEST(Ddprun, ARankZeroThatIsStartedAgainReadsOn) {
  // One byte at a time, so that no process takes more of the input than it uses.
  Job job(shell(1,
                "echo round $TORCHELASTIC_RESTART_COUNT read $(dd bs=1 count=3 2>/dev/null); "
                "[ $TORCHELASTIC_RESTART_COUNT = 1 ]",
                {"--max-restarts=1"}),
          {{}, false, "ddprun", input_of("onetwo")});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "round 0 read one\nround 1 read two\n");
}

TEST(Ddprun, ALookAtTheProcessesTellsTheGuardianFromDdprun) {
  Job job(shell(1, "echo stays; " + kStay));
  ASSERT_TRUE(job.prints("stays"));
  const auto first_word_of = [](pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
    std::string word;
    std::getline(file, word, '\0');
    return word;
  };
  int guardians = 0;
  for (const pid_t pid : job.processes())
    if (pid != job.pid() && first_word_of(pid) == "ddprun-guardian") ++guardians;
  EXPECT_EQ(guardians, 1);
  EXPECT_THAT(first_word_of(job.pid()), HasSubstr("bin/ddprun"));
  job.kill(SIGTERM);
  job.wait();
}

TEST(Ddprun, WorkersAreToldWhichPortsToKeepTo) {
  Job job(shell(1, "echo ports $DDPRUN_PORT_RANGE", {"--port-range=20000-65000"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "ports 20000-65000\n");
}

TEST(Ddprun, StandardInputIsEmptyWhereItIsNoTerminal) {
  Job job(shell(2, "cat; echo end"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "end\nend\n");
}

TEST(Ddprun, ExitCodesFollowTheTable) {
  const struct {
    const char* what;
    std::vector<std::string> arguments;
    int want;
  } cases[] = {
      {"success", shell(2, "exit 0"), 0},
      {"the worker's own code", shell(2, "[ $RANK = 0 ] || exit 3; " + kStay), 3},
      {"a worker's own 75 is not ddprun's", shell(1, "exit 75"), 1},
      {"killed", shell(2, "[ $RANK = 0 ] || kill -9 $$; " + kStay), 137},
      {"aborted", shell(1, "kill -ABRT $$"), 134},
      {"no program", {"--standalone"}, 2},
      {"unknown option", {"--bogus", "3", "train.py"}, 2},
      {"not there", {"./nowhere"}, 127},
      {"not executable", {"/etc/passwd"}, 126},
      {"no workers", {"--nproc-per-node=0", "true"}, 2},
      {"help", {"--help"}, 0},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    Job job(c.arguments);
    EXPECT_EQ(job.wait(), c.want) << job.err();
    EXPECT_TRUE(job.is_gone_within());
    if (c.want == 0) continue;
    EXPECT_THAT(job.err(), HasSubstr("error: "));
    EXPECT_THAT(job.err(), HasSubstr("\nwhere: "));
    EXPECT_THAT(job.err(), HasSubstr("\ntry:   "));
  }
}

TEST(Ddprun, AScriptWhoseInterpreterIsMissingIsNotFound) {
  char folder[] = "/tmp/ddprun_test_XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const auto path = std::string(folder) + "/script";
  std::ofstream(path) << "#!/nonexistent/interpreter\n";
  ::chmod(path.c_str(), 0755);
  Job job({"--nproc-per-node=2", "--max-restarts=3", path});
  EXPECT_EQ(job.wait(), 127);
  EXPECT_THAT(job.err(), HasSubstr("could not be started"));
  EXPECT_THAT(job.err(), Not(HasSubstr("start again")));
  std::filesystem::remove_all(folder);
}

TEST(Ddprun, TheSummaryBlamesTheFirstFailureAndQuotesItsStderr) {
  Job job(shell(3,
                "trap 'echo consequence >&2; exit 9' TERM; echo up; "
                "if [ $RANK = 1 ]; then echo the reason >&2; exit 5; fi; " +
                    kWaitForSignals));
  EXPECT_EQ(job.wait(), 5);
  EXPECT_THAT(job.err(), HasSubstr("error: rank 1 ended with exit code 5"));
  EXPECT_THAT(job.err(), HasSubstr("the other 2 ranks were stopped"));
  EXPECT_THAT(job.err(), HasSubstr("  | the reason\n"));
}

// The workers say nothing of each other, so only the look of the guardian shows it: rank 1 fails and is reaped while
// rank 0 is dying. A tracer keeps rank 0 there until the others have got their signal.
TEST(Ddprun, WorkerThatWasDyingAtTheFirstFailureIsTheCause) {
  Job job(
      shell(3, "ulimit -c 0; case $RANK in 0) echo dying $$; " + kStay +
                   ";; 1) trap 'exit 1' USR1; echo failing $$;; 2) trap 'echo told; exit 0' TERM; echo up;; esac; " +
                   kWaitForSignals));
  const auto dying = static_cast<pid_t>(job.number_after("dying "));
  const auto failing = static_cast<pid_t>(job.number_after("failing "));
  ASSERT_TRUE(dying > 0 && failing > 0 && job.prints("up"));
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, dying, nullptr, PTRACE_O_TRACEEXIT), 0);
  ::kill(dying, SIGILL);
  int status = 0;
  ASSERT_EQ(::waitpid(dying, &status, __WALL), dying);  // about to die of the signal
  ASSERT_EQ(::ptrace(PTRACE_CONT, dying, nullptr, SIGILL), 0);
  ASSERT_EQ(::waitpid(dying, &status, __WALL), dying);
  ASSERT_EQ(status >> 8, SIGTRAP | PTRACE_EVENT_EXIT << 8);
  ::kill(failing, SIGUSR1);
  EXPECT_TRUE(job.prints("told"));
  ASSERT_EQ(::ptrace(PTRACE_CONT, dying, nullptr, 0), 0);
  ::waitpid(dying, &status, __WALL);  // the tracer reaps it first, then the guardian does
  EXPECT_EQ(job.wait(), 128 + SIGILL);
  EXPECT_THAT(job.err(), HasSubstr("error: rank 0 was killed by SIGILL"));
  EXPECT_THAT(job.err(), HasSubstr("rank 1 ended with exit code 1"));
}

TEST(Ddprun, TheSummaryIsNeverDroppedAndBeginsALine) {
  // More than the bound of unread output, and nobody reads before the worker has printed all of it.
  char folder[] = "/tmp/ddprun_test_XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const auto done = std::string(folder) + "/done";
  Job job(shell(
      1, "head -c 40000000 /dev/zero | tr '\\0' 'x' | fold -w 99; printf unfinished >&2; mkdir " + done + "; exit 3"));
  ASSERT_TRUE(becomes_true([&] { return std::filesystem::exists(done); }));
  EXPECT_EQ(job.wait(), 3);
  std::filesystem::remove_all(folder);
  EXPECT_NE(job.out().find("\nddprun: dropped "), std::string::npos) << job.out().size();
  EXPECT_THAT(job.err(), HasSubstr("unfinished\nerror: rank 0 ended with exit code 3"));
  EXPECT_THAT(job.err(), HasSubstr("\ntry:   "));
}

TEST(Ddprun, AFullDiskIsTold) {
  Job job({"--nproc-per-node=1", "sh", "-c", "exec " + built("ddprun") + " --nproc-per-node=1 echo lost > /dev/full"});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.err(), HasSubstr("stdout can't be written"));
}

TEST(Ddprun, AWorkersErrorFileIsQuoted) {
  Job job(shell(
      1,
      R"(echo '{"message": {"message": "ValueError: no data", "extraInfo": {}}}' > $TORCHELASTIC_ERROR_FILE; exit 1)"));
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.err(), HasSubstr("ValueError: no data"));
}

TEST(Ddprun, ALauncherWithinALauncherPassesTheReasonOn) {
  const auto inside = "exec " + built("ddprun") + " --nproc-per-node=2 sh -c ";
  {
    Job job(shell(1, inside + R"('[ $RANK = 0 ] || exec tail -f /dev/null;
                  echo "{\"message\": {\"message\": \"ValueError: no data\"}}" > $TORCHELASTIC_ERROR_FILE; exit 3')"));
    EXPECT_EQ(job.wait(), 3);
    EXPECT_THAT(job.err(), HasSubstr("cause: ValueError: no data\nits stderr ended with:\n"));  // the outer one's
  }
  {
    Job job(shell(1, inside + "'[ $RANK = 0 ] || exec tail -f /dev/null; kill -9 $$'"));
    EXPECT_EQ(job.wait(), 137);
    EXPECT_THAT(job.err(), HasSubstr("cause: rank 0 was killed by SIGKILL"));
  }
}

TEST(Ddprun, AFailureStartsAllAgainWhileTheBudgetLasts) {
  Job job(shell(3,
                "echo round $TORCHELASTIC_RESTART_COUNT; [ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ] || kill -9 $$; "
                "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || " +
                    kStay,
                {"--max-restarts=1"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("round 1\nround 1\nround 1\n"));
  EXPECT_THAT(job.err(), HasSubstr("rank 1 was killed by SIGKILL"));
  EXPECT_THAT(job.err(), HasSubstr("restart 1 of 1"));
}

TEST(Ddprun, ClosedStandardDescriptorsAreNoTrap) {
  const auto script = "exec <&- >&- 2>&-; exec " + built("ddprun") + " --nproc-per-node=2 sh -c 'echo hello; exit 3'";
  Job job({"--nproc-per-node=1", "sh", "-c", script});
  EXPECT_EQ(job.wait(), 3);
  EXPECT_EQ(job.out(), "");
}

TEST(Ddprun, AnIgnoredSigchldHidesNoWorkersEnd) {
  ::signal(SIGCHLD, SIG_IGN);
  Job job(shell(2, "[ $RANK = 0 ] || exit 5; " + kStay));
  ::signal(SIGCHLD, SIG_DFL);
  EXPECT_EQ(job.wait(), 5);
}

// `exec > >(tee log); exec ddprun ...` makes the log's writer a child of ddprun.
TEST(Ddprun, ChildrenOfTheCallerAreNotItsOwn) {
  for (const auto* end : {"exit 0", "kill -9 $PPID; exec tail -f /dev/null"}) {  // $PPID: the guardian
    SCOPED_TRACE(end);
    const auto script = "tail -f /dev/null & echo foreign $!; exec " + built("ddprun") + " sh -c '" + end + "'";
    Job job({"--nproc-per-node=1", "sh", "-c", "exec sh -c \"$SCRIPT\""}, {{"SCRIPT=" + script}, false});
    const auto foreign = static_cast<pid_t>(job.number_after("foreign "));
    ASSERT_GT(foreign, 0);
    ASSERT_TRUE(job.prints(std::string(end) == "exit 0" ? "starting 1 worker" : "guardian process was killed"));
    EXPECT_GE(job.wait(), 0);
  }
}

TEST(Ddprun, AFolderForErrorFilesIsNeeded) {
  Job job(shell(1, "true"), {{"TMPDIR=/nonexistent"}, false});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.err(), HasSubstr("TMPDIR"));
}

TEST(Ddprun, AForwardedSignalReachesWorkersThatHandleItAndStopsNothing) {
  Job job(shell(2, "[ $RANK = 1 ] || trap 'echo caught' USR1; echo pid_$RANK $$; " + kWaitForSignals,
                {"--forward-signals=SIGUSR1"}));
  const auto handles_it = static_cast<pid_t>(job.number_after("pid_0 ")),
             other = static_cast<pid_t>(job.number_after("pid_1 "));
  ASSERT_TRUE(handles_it > 0 && other > 0) << job.err();
  for (int count = 1; count <= 2; ++count) {
    job.kill(SIGUSR1);
    ASSERT_TRUE(job.prints("caught", count)) << job.err();
  }
  EXPECT_THAT(job.err(), HasSubstr("SIGUSR1"));
  for (const pid_t worker : {handles_it, other})
    EXPECT_TRUE(process_state(worker) != 0 && process_state(worker) != 'Z') << worker;
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.err();
  EXPECT_TRUE(job.is_gone_within());
}

TEST(Ddprun, StopSignalsReachWorkersAsTheyAre) {
  for (const auto& [number, name] : {std::pair{SIGINT, "INT"}, {SIGTERM, "TERM"}, {SIGHUP, "HUP"}, {SIGQUIT, "QUIT"}}) {
    SCOPED_TRACE(name);
    Job job(shell(2, std::string("trap 'echo got ") + name + "; exit 0' " + name + "; echo ready; " + kWaitForSignals));
    ASSERT_TRUE(job.prints("ready", 2));
    job.kill(number);
    EXPECT_EQ(job.wait(), 128 + number);
    EXPECT_EQ(job.out(), std::string("ready\nready\ngot ") + name + "\ngot " + name + "\n");
    EXPECT_THAT(job.err(), HasSubstr(std::string("SIG") + name + " from pid " + std::to_string(::getpid())));
    EXPECT_TRUE(job.is_gone_within());
  }
}

TEST(Ddprun, AHangUpIgnoredAtTheStartStaysIgnored) {
  ::signal(SIGHUP, SIG_IGN);
  Job job(shell(1, "echo ready; " + kStay));
  ::signal(SIGHUP, SIG_DFL);
  ASSERT_TRUE(job.prints("ready"));
  job.kill(SIGHUP);
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
}

TEST(Ddprun, WorkersThatIgnoreTheSignalAreKilledAfterTheGrace) {
  Job job(shell(2, "trap '' TERM; echo ready; " + kStay, {"--shutdown-timeout=1"}));
  ASSERT_TRUE(job.prints("ready", 2));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_TRUE(job.is_gone_within());
}

TEST(Ddprun, TheGraceHoldsAfterAFailureToo) {
  Job job(shell(2, "trap '' TERM; if [ $RANK = 0 ]; then exit 4; fi; " + kStay, {"--shutdown-timeout=0"}));
  EXPECT_EQ(job.wait(), 4);
  EXPECT_TRUE(job.is_gone_within());
}

TEST(Ddprun, AStoppedWorkerHearsTheSignalAtOnce) {
  Job job(shell(1, "trap 'echo heard; exit 0' TERM; echo pid_0 $$; kill -STOP $$; " + kWaitForSignals,
                {"--shutdown-timeout=1000"}));
  const auto worker = static_cast<pid_t>(job.number_after("pid_0 "));
  ASSERT_GT(worker, 0);
  ASSERT_TRUE(becomes_true([&] { return process_state(worker) == 'T'; }));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_THAT(job.out(), HasSubstr("heard"));
}

TEST(Ddprun, AWorkerThatRunsIsNotContinued) {
  Job job(shell(1, std::string("trap '' TERM; trap 'echo continued' CONT; echo ready; ") + kWaitForSignals,
                {"--shutdown-timeout=1"}));
  ASSERT_TRUE(job.prints("ready"));
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_EQ(job.out(), "ready\n");
}

TEST(Ddprun, ASecondSignalKillsAtOnce) {
  Job job(shell(1, "trap '' INT; echo ready; " + kStay));
  ASSERT_TRUE(job.prints("ready"));
  job.kill(SIGINT);
  ASSERT_TRUE(job.prints("at a second signal"));
  // An echo within 200 ms counts as the first; further ones are sent until one counts.
  EXPECT_TRUE(becomes_true([&] {
    job.kill(SIGINT);
    return process_state(job.pid()) == 'Z';
  }));
  EXPECT_EQ(job.wait(), 130);
}

TEST(Ddprun, DescendantsInOtherSessionsEndWithTheWorkers) {
  for (const auto& [end, want] : {std::pair{"exit 0", 0}, {"exit 3", 3}, {"kill -9 $$", 137}}) {
    SCOPED_TRACE(end);
    Job job(shell(2,
                  "setsid sh -c 'echo stray > $TORCHELASTIC_ERROR_FILE.up; exec tail -f /dev/null' & "
                  "until [ -e $TORCHELASTIC_ERROR_FILE.up ]; do :; done; " +
                      std::string(end)));
    EXPECT_EQ(job.wait(), want);
    EXPECT_TRUE(job.is_gone_within());
  }
}

TEST(Ddprun, KilledDdprunLeavesNothing) {
  Job job(shell(3, kStrayChild + "echo ready; trap '' TERM; " + kStay));
  ASSERT_TRUE(job.prints("stray", 3));
  ASSERT_TRUE(job.prints("ready", 3));
  // ddprun, guardian, 3 workers, 3 strays. A process that is in an exec has no environment to be known by.
  ASSERT_TRUE(becomes_true([&] { return job.processes().size() >= 8; }));
  job.kill(SIGKILL);
  EXPECT_TRUE(job.is_gone_within());
  EXPECT_EQ(job.wait(), 1000 + SIGKILL);
}

TEST(Ddprun, KilledGuardianLeavesNothingAndIsTold) {
  Job job(shell(3, kStrayChild + "echo guardian $PPID; " + kStay));
  ASSERT_TRUE(job.prints("stray", 3));
  ASSERT_TRUE(job.prints("guardian", 3));
  ::kill(static_cast<pid_t>(job.number_after("guardian ")), SIGKILL);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_TRUE(job.is_gone_within());
  EXPECT_THAT(job.err(), HasSubstr("guardian process was killed by SIGKILL"));
}

TEST(Ddprun, AHungGuardianDoesNotKeepASecondSignalFromKilling) {
  Job job(shell(1, "trap '' INT; trap 'echo continued' CONT; echo guardian $PPID; " + kWaitForSignals,
                {"--shutdown-timeout=1000"}));
  const auto guardian = static_cast<pid_t>(job.number_after("guardian "));
  ASSERT_GT(guardian, 0);
  job.kill(SIGCONT);  // passed on by the guardian: so it has reported the worker by now
  ASSERT_TRUE(job.prints("continued"));
  ::kill(guardian, SIGSTOP);
  job.kill(SIGINT);
  ASSERT_TRUE(job.prints("at a second signal"));
  ASSERT_TRUE(becomes_true([&] {
    job.kill(SIGINT);
    return job.processes().size() <= 2;  // ddprun and its guardian
  }));
  ::kill(guardian, SIGCONT);
  EXPECT_EQ(job.wait(), 130);
}

// A data loader's child holds the worker's pipes and sockets open; the worker's end is seen all the same.
TEST(Ddprun, AKilledWorkersChildThatHoldsItsPipesIsNoObstacle) {
  Job job(shell(2, "(trap '' TERM; echo child; " + kStay + ") & echo pid_$RANK $$; wait"));
  ASSERT_TRUE(job.prints("child", 2));
  const auto worker = static_cast<pid_t>(job.number_after("pid_1 "));
  ASSERT_GT(worker, 0);
  ASSERT_GT(job.number_after("pid_0 "), 0);
  // The other worker's child ignores SIGTERM and would use up the grace; the killed worker's own child is not waited
  // for.
  Job* running = &job;
  ::kill(worker, SIGKILL);
  EXPECT_TRUE(becomes_true([&] { return running->processes().size() <= 3; }));  // ddprun, guardian, rank 0's child
  job.kill(SIGTERM);
  ASSERT_TRUE(job.prints("at a second signal"));
  EXPECT_TRUE(becomes_true([&] {
    job.kill(SIGTERM);
    return process_state(job.pid()) == 'Z';
  }));
  EXPECT_EQ(job.wait(), 137);
  EXPECT_TRUE(job.is_gone_within());
}

TEST(Ddprun, AReaderThatHasGoneEndsTheJobLikeSigpipe) {
  Job job(shell(2, "while :; do echo line; done"));
  ASSERT_TRUE(job.prints("line"));
  job.close_stdout();
  EXPECT_EQ(job.wait(), 128 + SIGPIPE);
  EXPECT_TRUE(job.is_gone_within());
}

TEST(Ddprun, ManyWorkersThatEndAtOnceAreAllSeenAndHeard) {
  for (int i = 0; i < 10; ++i) {
    Job job({"--nproc-per-node=64", "echo", "here"});
    ASSERT_EQ(job.wait(), 0) << job.err();
    ASSERT_EQ(std::count(job.out().begin(), job.out().end(), '\n'), 64);
  }
}

TEST(Ddprun, MoreWorkersThanTheGuardiansSocketHoldsAtOnce) {
  Job job({"--nproc-per-node=600", "echo", "here"});
  ASSERT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(std::count(job.out().begin(), job.out().end(), '\n'), 600);
}

// A worker may end before the next one is started, when the tree is empty for a moment: that is not the end of the
// round. Many short rounds, because only some of them meet that moment. A pause would follow those that end at once and
// keep nothing, so the worker tells of a commit, as libddp does.
TEST(Ddprun, WorkersThatStartAfterOthersHaveEndedAreHeard) {
  Job job(shell(
      3,
      "echo here; [ $RANK$TORCHELASTIC_RESTART_COUNT != 2$((TORCHELASTIC_RESTART_COUNT % 200)) ] || " + kCommitAndDie,
      {"--max-restarts=200"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.err(), Not(HasSubstr("SIGPIPE")));
  EXPECT_THAT(job.err(), HasSubstr("restart 200 of 200"));
}

TEST(Ddprun, LeavesNoFileBehind) {
  char folder[] = "/tmp/ddprun_test_XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::vector<std::string> environment{std::string("TMPDIR=") + folder};
  {
    Job job(shell(1, "echo x > $TORCHELASTIC_ERROR_FILE"), {environment, false});
    EXPECT_EQ(job.wait(), 0);
  }
  {
    Job job(shell(1, "echo x > $TORCHELASTIC_ERROR_FILE; echo ready; " + kStay), {environment, false});
    ASSERT_TRUE(job.prints("ready"));
    job.kill(SIGKILL);
    ASSERT_TRUE(job.is_gone_within());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

// As before Linux 5.3 and in some sandboxes.
Job::Options without_pidfds() {
  Job::Options options;
  options.before_exec = [] { testing::refuse_system_call(SYS_pidfd_open, ENOSYS); };
  return options;
}

TEST(WithoutPidfds, AJobRunsAndItsFailureIsTold) {
  Job good(shell(2, "echo rank $RANK"), without_pidfds());
  EXPECT_EQ(good.wait(), 0) << good.err();
  EXPECT_EQ(good.err(), "");
  Job bad(shell(2, "[ $RANK = 1 ] && exit 3; " + kStay), without_pidfds());
  EXPECT_EQ(bad.wait(), 3) << bad.err();
  EXPECT_TRUE(bad.is_gone_within());
}

TEST(WithoutPidfds, WorkersDieWithDdprun) {
  Job job(shell(2, "echo up; " + kStay), without_pidfds());
  ASSERT_TRUE(job.prints("up\n", 2)) << job.err();
  job.kill(SIGKILL);
  EXPECT_EQ(job.wait(), 1000 + SIGKILL);
  EXPECT_TRUE(job.is_gone_within());
}

}  // namespace
}  // namespace ddp::test
