#include "launcher/agent/own_process.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>

#include "base/boot_id.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
  void leave_one(const std::optional<NodeRecord>& record = {}) const {
    const pid_t child = ::fork();
    if (child == 0) {
      const ScratchDirectory own("job");
      std::ofstream(own.path() + "/round_0_rank_0_error.json") << "{}";
      if (record) write_record(own.path(), *record);
      ::kill(::getpid(), SIGKILL);
    }
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  }
  // The same with a guardian, which does `what(folder)` and ends. Returns its process.
  static pid_t leave_one_with_guardian(const std::function<void(const std::string&)>& what) {
    int pipe[2];
    EXPECT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const ScratchDirectory own("job");
      auto record = record_of("job");
      record.pid = ::getpid();
      write_record(own.path(), record);
      const pid_t guardian = ::fork();
      if (guardian == 0) {
        what(own.path());
        ::_exit(0);
      }
      if (::write(pipe[1], &guardian, sizeof guardian) != sizeof guardian) ::_exit(1);
      ::kill(::getpid(), SIGKILL);
    }
    pid_t guardian = 0;
    EXPECT_EQ(::read(pipe[0], &guardian, sizeof guardian), static_cast<ssize_t>(sizeof guardian));
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
    ::close(pipe[0]);
    ::close(pipe[1]);
    return guardian;
  }
  // Source: proc(5), /proc/locks; "->" is one that waits.
  static bool is_lock_awaited(ino_t inode) {
    std::ifstream locks("/proc/locks");
    const auto of_inode = ":" + std::to_string(inode) + " ";
    for (std::string line; std::getline(locks, line);)
      if (line.find("->") != std::string::npos && line.find(of_inode) != std::string::npos) return true;
    return false;
  }
  static NodeRecord record_of(const std::string& run_id) {
    return {run_id, {std::string(32, 'a'), {1700000000, 7, 3}, 1, 2, std::string(32, 'b')}, 0};
  }
  fs::path only_folder() const { return fs::directory_iterator(parent_.path())->path(); }

  std::string before_ = ::getenv("TMPDIR") != nullptr ? ::getenv("TMPDIR") : "";
  test::ScratchDirectory parent_;
};

TEST_F(OwnScratchDirectory, IsGoneWithTheRun) {
  {
    const ScratchDirectory own("job");
    EXPECT_TRUE(fs::is_directory(own.path()));
  }
  EXPECT_EQ(count(), 0);
}

TEST_F(OwnScratchDirectory, OneOfAKilledRunIsRemovedByTheNext) {
  leave_one();
  EXPECT_EQ(count(), 1);
  {
    const ScratchDirectory next("job");
    EXPECT_EQ(count(), 1) << "its own";
  }
  EXPECT_EQ(count(), 0);
}

TEST_F(OwnScratchDirectory, OneWhoseOwnerLivesStays) {
  const ScratchDirectory living("job");
  const ScratchDirectory next("job");
  EXPECT_TRUE(fs::is_directory(living.path()));
  EXPECT_NE(living.path(), next.path());
}

// As the guardian, which lives for a moment longer than a ddprun that was killed.
TEST_F(OwnScratchDirectory, OneWhoseGuardianLivesStays) {
  std::optional<ScratchDirectory> own(std::in_place, "job");
  const auto path = own->path();
  const pid_t guardian = ::fork();
  if (guardian == 0) {
    for (;;) ::pause();
  }
  fs::rename(path, path + "x");
  own.reset();  // gives up its own lock; the folder stays, under another name
  fs::rename(path + "x", path);
  {
    const ScratchDirectory next("job");
    EXPECT_TRUE(fs::is_directory(path));
  }
  ::kill(guardian, SIGKILL);
  ASSERT_EQ(::waitpid(guardian, nullptr, 0), guardian);
  {
    const ScratchDirectory next("job");
    EXPECT_FALSE(fs::exists(path));
  }
}

TEST_F(OwnScratchDirectory, RecordOfAKilledRunProvesItsEndUntilTheNextHasItsOwn) {
  leave_one(record_of("job"));
  boost::asio::io_context io;
  {
    const ScratchDirectory next("job");
    EXPECT_THAT(next.ended_nodes(), ElementsAre(record_of("job").node));
    EXPECT_EQ(count(), 2) << "this one may be killed before it has told anybody";
    auto its = record_of("job");
    its.node.round.number = 4;
    RecordFile(io, next).write(its);
    EXPECT_EQ(count(), 1);
    EXPECT_EQ(read_record(next.path())->node, its.node);
  }
  EXPECT_EQ(count(), 0);
}

TEST_F(OwnScratchDirectory, RecordOfAnotherJobIsForADdprunOfThatJobForADay) {
  leave_one(record_of("other"));
  EXPECT_THAT(ScratchDirectory("job").ended_nodes(), IsEmpty());
  EXPECT_THAT(ScratchDirectory("other").ended_nodes(), ElementsAre(record_of("other").node));
  const auto file = only_folder() / "node.json";
  fs::last_write_time(file, fs::last_write_time(file) - std::chrono::hours(25));
  EXPECT_THAT(ScratchDirectory("job").ended_nodes(), IsEmpty());
  EXPECT_EQ(count(), 0);
}

TEST_F(OwnScratchDirectory, RecordOfARunThatLivesProvesNothing) {
  const ScratchDirectory living("job");
  write_record(living.path(), record_of("job"));
  EXPECT_THAT(ScratchDirectory("job").ended_nodes(), IsEmpty());
}

// A supervisor starts ddprun anew once it has reaped it, which may be before the guardian was killed.
TEST_F(OwnScratchDirectory, RecordOfAKilledRunProvesItsEndOnceItsGuardianHasEndedToo) {
  leave_one_with_guardian([](const std::string& folder) {
    struct stat info {};
    ::stat(folder.c_str(), &info);
    while (!is_lock_awaited(info.st_ino)) {
    }
  });
  EXPECT_THAT(ScratchDirectory("job").ended_nodes(), ElementsAre(record_of("job").node));
}

TEST_F(OwnScratchDirectory, RecordOfAKilledRunProvesNothingWhileItsGuardianLives) {
  const auto guardian = leave_one_with_guardian([](const std::string&) {
    for (;;) ::pause();
  });
  EXPECT_THAT(ScratchDirectory("job").ended_nodes(), IsEmpty());
  EXPECT_EQ(::kill(guardian, SIGKILL), 0);
}

TEST_F(OwnScratchDirectory, CopyOfTheFolderOfARunThatLivesProvesNothing) {
  const ScratchDirectory living("job");
  write_record(living.path(), record_of("job"));
  fs::copy(living.path(), living.path().substr(0, living.path().size() - 6) + "abcdef");
  EXPECT_THAT(ScratchDirectory("job").ended_nodes(), IsEmpty());
}

// Another host that has the same file system, or this one before it was booted: its locks are not known here.
TEST_F(OwnScratchDirectory, FolderOfAnotherKernelProvesNothingAndStays) {
  leave_one(record_of("job"));
  fs::rename(only_folder(), parent_.path() / "ddprun_scratch_01234567-89ab-cdef-0123-456789abcdef_abcdef");
  EXPECT_THAT(ScratchDirectory("job").ended_nodes(), IsEmpty());
  EXPECT_EQ(count(), 1);
}

TEST_F(OwnScratchDirectory, WhatIsNoRecordProvesNothing) {
  const auto good = record_of("job");
  auto short_key = good, short_nonce = good, no_rank = good;
  short_key.node.node_key.pop_back();
  short_nonce.node.nonce.pop_back();
  no_rank.node.group_rank = -1;
  for (const auto& record : {short_key, short_nonce, no_rank}) {
    leave_one(record);
    EXPECT_THAT(ScratchDirectory("job").ended_nodes(), IsEmpty());
  }
  for (const char* text : {"", "{", "[]", "{\"folder\": 7}"}) {
    leave_one(good);
    std::ofstream(only_folder() / "node.json") << text;
    EXPECT_THAT(ScratchDirectory("job").ended_nodes(), IsEmpty()) << text;
  }
}

TEST_F(OwnScratchDirectory, WhatOthersHaveThereStays) {
  fs::create_directory(parent_.path() / "ddprun_100000");
  fs::create_directory(parent_.path() / "ddprun_scratch_otherhost_abcdef");
  const auto name = "ddprun_scratch_" + base::boot_id() + "_abcdef";
  fs::create_directory(parent_.path() / "elsewhere");
  fs::create_directory_symlink(parent_.path() / "elsewhere", parent_.path() / name);
  { const ScratchDirectory own("job"); }
  EXPECT_EQ(count(), 4);
}

}  // namespace
}  // namespace ddp::launcher
