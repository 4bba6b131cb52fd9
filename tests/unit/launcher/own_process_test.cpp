#include "launcher/agent/own_process.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "base/host_name.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

class SignalsToTakeIn : public ::testing::Test {
 protected:
  static void ignore(int number) { ::signal(number, SIG_IGN); }
  ~SignalsToTakeIn() override {
    for (const int number : {SIGUSR1, SIGUSR2, SIGHUP, SIGTERM}) ::signal(number, SIG_DFL);
  }

  static bool has(bool is_in_step, int number) {
    const auto set = signals_to_take_in({SIGTERM, SIGHUP}, {SIGUSR1}, is_in_step);
    return ::sigismember(&set, number) == 1;
  }
};

TEST_F(SignalsToTakeIn, WhatWasIgnoredAtTheStartStaysSo) {
  EXPECT_TRUE(has(false, SIGUSR1));
  EXPECT_TRUE(has(false, SIGHUP));
  EXPECT_TRUE(has(false, SIGCHLD));
  ignore(SIGUSR1);
  ignore(SIGHUP);
  EXPECT_FALSE(has(false, SIGUSR1));
  EXPECT_FALSE(has(false, SIGHUP));
}

TEST_F(SignalsToTakeIn, InAStepAWarningIsTakenInAlsoByTheWorkerOfAnotherDdprunWhichIgnoresIt) {
  for (const int number : {SIGUSR1, SIGUSR2, SIGHUP}) ignore(number);
  EXPECT_TRUE(has(true, SIGUSR1));
  EXPECT_FALSE(has(true, SIGUSR2)) << "it is not passed on";
  EXPECT_FALSE(has(true, SIGHUP));
}

namespace fs = std::filesystem;

// A ddprun's folder for short-lived files, in a TMPDIR of the test's own.
class OwnScratchDirectory : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("TMPDIR", parent_.path().c_str(), 1); }
  void TearDown() override { before_.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before_.c_str(), 1); }

  auto count() const { return std::distance(fs::directory_iterator(parent_.path()), {}); }

  // In a process that is killed while it has one.
  void leave_one() const {
    const pid_t child = ::fork();
    if (child == 0) {
      const ScratchDirectory own;
      std::ofstream(own.path() + "/round_0_rank_0_error.json") << "{}";
      ::kill(::getpid(), SIGKILL);
    }
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  }

  std::string before_ = ::getenv("TMPDIR") != nullptr ? ::getenv("TMPDIR") : "";
  test::ScratchDirectory parent_;
};

TEST_F(OwnScratchDirectory, IsGoneWithTheRun) {
  {
    const ScratchDirectory own;
    EXPECT_TRUE(fs::is_directory(own.path()));
  }
  EXPECT_EQ(count(), 0);
}

TEST_F(OwnScratchDirectory, OneOfAKilledRunIsRemovedByTheNext) {
  leave_one();
  EXPECT_EQ(count(), 1);
  {
    const ScratchDirectory next;
    EXPECT_EQ(count(), 1) << "its own";
  }
  EXPECT_EQ(count(), 0);
}

TEST_F(OwnScratchDirectory, OneWhoseOwnerLivesStays) {
  const ScratchDirectory living;
  const ScratchDirectory next;
  EXPECT_TRUE(fs::is_directory(living.path()));
  EXPECT_NE(living.path(), next.path());
}

// As the guardian, which lives for a moment longer than a ddprun that was killed.
TEST_F(OwnScratchDirectory, OneWhoseGuardianLivesStays) {
  std::optional<ScratchDirectory> own(std::in_place);
  const auto path = own->path();
  const pid_t guardian = ::fork();
  if (guardian == 0) {
    for (;;) ::pause();
  }
  fs::rename(path, path + "x");
  own.reset();  // gives up its own lock; the folder stays, under another name
  fs::rename(path + "x", path);
  {
    const ScratchDirectory next;
    EXPECT_TRUE(fs::is_directory(path));
  }
  ::kill(guardian, SIGKILL);
  ASSERT_EQ(::waitpid(guardian, nullptr, 0), guardian);
  {
    const ScratchDirectory next;
    EXPECT_FALSE(fs::exists(path));
  }
}

TEST_F(OwnScratchDirectory, WhatOthersHaveThereStays) {
  fs::create_directory(parent_.path() / "ddprun_100000");
  fs::create_directory(parent_.path() / "ddprun_scratch_otherhost_abcdef");
  const auto name = "ddprun_scratch_" + base::host_name() + "_abcdef";
  fs::create_directory(parent_.path() / "elsewhere");
  fs::create_directory_symlink(parent_.path() / "elsewhere", parent_.path() / name);
  { const ScratchDirectory own; }
  EXPECT_EQ(count(), 4);
}

}  // namespace
}  // namespace ddp::launcher
