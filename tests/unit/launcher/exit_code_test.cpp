#include "launcher/worker_group/exit_code.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>

#include "rendezvous/membership/outcome.hpp"

namespace ddp::launcher {
namespace {

using rendezvous::describe;
using rendezvous::exit_code_of;

// The table of docs/exit_codes.md, row by row.
TEST(ExitCode, FollowsTheTable) {
  namespace outcome = rendezvous::outcome;
  using Kind = Ending::Kind;
  const struct {
    const char* what;
    rendezvous::Outcome outcome;
    int want;
  } cases[] = {
      {"all workers ended with 0", outcome::Success{}, 0},
      {"ddprun was stopped by SIGINT", outcome::StoppedBySignal{SIGINT}, 130},
      {"ddprun was stopped by SIGTERM", outcome::StoppedBySignal{SIGTERM}, 143},
      {"nobody reads its output", outcome::StoppedBySignal{SIGPIPE}, 141},
      {"wrong use", outcome::WrongUse{}, 2},
      {"the program can't be run", outcome::ProgramUnusable{}, 126},
      {"the program is not found", outcome::ProgramMissing{}, 127},
      {"the time of --timeout is over", outcome::TimeIsOver{}, 124},
      {"stopped on purpose", outcome::StoppedAtStep{}, 75},
      {"no progress", outcome::NoProgress{}, 76},
      {"the nodes are not together", outcome::NotTogether{}, 77},
      {"the job could not be started at all", outcome::NotStarted{}, 1},
      {"workers were stopped, and no failure is known", outcome::Unexplained{}, 1},
      {"what membership has told all nodes", outcome::Told{76}, 76},
      {"the guardian was killed", outcome::GuardianEnded{{Kind::killed, SIGKILL, false}}, 137},
      {"the guardian ended with 0, which is no success", outcome::GuardianEnded{{Kind::exited, 0, false}}, 1},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_EQ(exit_code_of(c.outcome), c.want);
  }
}

TEST(ExitCode, OfAFailedWorkerIsItsOwnUnlessThatIsOneOfDdpruns) {
  using Kind = Ending::Kind;
  const struct {
    const char* what;
    Ending ending;
    int want;
  } cases[] = {
      {"success", {Kind::exited, 0, false}, 0},
      {"the worker's own code", {Kind::exited, 3, false}, 3},
      {"255", {Kind::exited, 255, false}, 255},
      {"wrong use, said by the worker", {Kind::exited, 2, false}, 2},
      {"124, said by the worker", {Kind::exited, 124, false}, 124},
      {"126, said by the worker", {Kind::exited, 126, false}, 126},
      {"127, said by the worker", {Kind::exited, 127, false}, 127},
      {"74 is nobody's", {Kind::exited, 74, false}, 74},
      {"75 is ddprun's own", {Kind::exited, 75, false}, 1},
      {"76 is ddprun's own", {Kind::exited, 76, false}, 1},
      {"77 is ddprun's own", {Kind::exited, 77, false}, 1},
      {"78 is nobody's", {Kind::exited, 78, false}, 78},
      {"SIGKILL", {Kind::killed, SIGKILL, false}, 137},
      {"SIGSEGV with core", {Kind::killed, SIGSEGV, true}, 139},
      {"SIGINT", {Kind::killed, SIGINT, false}, 130},
      {"no such program", {Kind::not_started, ENOENT, false}, 127},
      {"not executable", {Kind::not_started, EACCES, false}, 126},
      {"no program at all", {Kind::not_started, ENOEXEC, false}, 126},
      {"left its group for no known reason", {Kind::left, 0, false}, 1},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_EQ(exit_code_of(rendezvous::outcome::WorkerFailed{c.ending}), c.want);
  }
}

TEST(ExitCode, ReadsWaitStatus) {
  EXPECT_EQ(ending_of(0x0300).kind, Ending::Kind::exited);
  EXPECT_EQ(ending_of(0x0300).value, 3);
  EXPECT_EQ(ending_of(0x0009).kind, Ending::Kind::killed);
  EXPECT_EQ(ending_of(0x0009).value, SIGKILL);
  EXPECT_FALSE(ending_of(0x0009).core_dumped);
  EXPECT_EQ(ending_of(0x008b).value, SIGSEGV);
  EXPECT_TRUE(ending_of(0x008b).core_dumped);
}

TEST(ExitCode, KnowsWhatASchedulerSendsToEveryProcess) {
  using Kind = Ending::Kind;
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    EXPECT_TRUE(is_schedulers_signal({Kind::killed, number, false}));
    EXPECT_TRUE(is_schedulers_signal({Kind::exited, 128 + number, false})) << "a shell's way to say so";
    EXPECT_FALSE(is_schedulers_signal({Kind::exited, number, false}));
    EXPECT_FALSE(is_schedulers_signal({Kind::not_started, number, false}));
    EXPECT_FALSE(is_schedulers_signal({Kind::left, number, false}));
  }
  for (const int number : {SIGKILL, SIGSEGV, SIGHUP, SIGUSR2})
    EXPECT_FALSE(is_schedulers_signal({Kind::killed, number, false}));
  EXPECT_FALSE(is_schedulers_signal({Kind::exited, 0, false}));
}

TEST(ExitCode, DescribesEndings) {
  EXPECT_EQ(describe({Ending::Kind::exited, 3, false}), "ended with exit code 3");
  EXPECT_EQ(describe({Ending::Kind::killed, SIGSEGV, true}), "was killed by SIGSEGV (core dumped)");
  EXPECT_EQ(describe({Ending::Kind::not_started, ENOENT, false}), "could not be started: No such file or directory");
  EXPECT_EQ(signal_name(SIGRTMAX), "signal " + std::to_string(SIGRTMAX));
}

}  // namespace
}  // namespace ddp::launcher
