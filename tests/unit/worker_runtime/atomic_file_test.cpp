// Failures and orders that depend on one moment: this program replaces the C library's flock, fsync, readdir, rename
// and renameat2, so that a test acts, counts or fails exactly there.

#include "worker_runtime/checkpoint/atomic_file.hpp"

#include "ddp/checkpoint.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"
#include "worker_runtime/flight_recorder/group_log.hpp"
#include "worker_runtime/flight_recorder/failure_files.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

namespace {

std::function<void(int fd)> before_flock;  // called once
std::function<void(int fd)> before_fsync;  // called each time
std::function<void()> before_renameat2;    // called each time
std::function<void()> before_rename;       // called each time
int readdir_calls_left = -1;               // that succeed; -1: all

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int flock(int fd, int operation) noexcept {
  if (const auto hook = std::exchange(before_flock, nullptr)) hook(fd);
  return static_cast<int>(::syscall(SYS_flock, fd, operation));
}

__attribute__((visibility("default"))) int fsync(int fd) {
  if (before_fsync) before_fsync(fd);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

__attribute__((visibility("default"))) int renameat2(int from_directory, const char* from, int to_directory,
                                                     const char* to, unsigned flags) noexcept {
  if (before_renameat2) before_renameat2();
  return static_cast<int>(::syscall(SYS_renameat2, from_directory, from, to_directory, to, flags));
}

__attribute__((visibility("default"))) int rename(const char* from, const char* to) noexcept {
  if (before_rename) before_rename();
  return static_cast<int>(::syscall(SYS_rename, from, to));
}

__attribute__((visibility("default"))) dirent* readdir(DIR* directory) {
  static const auto next = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  if (readdir_calls_left == 0) {
    errno = EIO;
    return nullptr;
  }
  if (readdir_calls_left > 0) --readdir_calls_left;
  return next(directory);
}

}  // extern "C"

namespace {

using ddp::checkpoint::AtomicFile;
using ddp::checkpoint::remove_abandoned;
using ddp::test::ScratchDirectory;
using testing::ElementsAre;
namespace fs = std::filesystem;

class AtomicFiles : public testing::Test {
 protected:
  ~AtomicFiles() override {
    before_flock = nullptr;
    before_fsync = nullptr;
    before_renameat2 = nullptr;
    before_rename = nullptr;
    readdir_calls_left = -1;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(scratch_.path())) all.push_back(entry.path().filename().string());
    return all;
  }

  // Writes a file. `opened` happens between the opening of its temporary file and its lock, `locked` after that.
  void write_file(const std::function<void()>& opened, const std::function<void()>& locked) const {
    before_flock = [&](int) { opened(); };
    AtomicFile file(scratch_.path() / "file");
    locked();
    file.write("whole", 5);
    file.commit(AtomicFile::Existing::refuse);
  }

  ScratchDirectory scratch_;
};

TEST_F(AtomicFiles, ATidierThatTakesTheNewTemporaryFileForAbandonedDoesNoHarm) {
  write_file([&] { remove_abandoned(scratch_.path()); }, [] {});
  EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(AtomicFiles, ATidierThatHasLockedTheNewTemporaryFileDoesNoHarm) {
  fs::path temporary;
  int tidier = -1;
  write_file(
      [&] {
        temporary = scratch_.path() / names().at(0);
        tidier = ::open(temporary.c_str(), O_RDONLY | O_CLOEXEC);
        ASSERT_EQ(::syscall(SYS_flock, tidier, LOCK_EX | LOCK_NB), 0);
      },
      [&] { ::unlink(temporary.c_str()); });
  ::close(tidier);
  EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(AtomicFiles, AFolderThatCanNotBeReadToItsEndIsTidiedTheNextTime) {
  for (const char* name : {"a", "b", "c"}) std::ofstream(scratch_.path() / name) << name;
  for (int calls = 0; calls < 5; ++calls) {
    readdir_calls_left = calls;
    EXPECT_NO_THROW(remove_abandoned(scratch_.path())) << "after " << calls << " entries";
    EXPECT_EQ(readdir_calls_left, 0);
  }
}

// After a power failure, any other order can leave the name without its bytes.
TEST_F(AtomicFiles, FileIsOnDiskBeforeItsNameAndTheFolderAfterIt) {
  for (const auto existing : {AtomicFile::Existing::refuse, AtomicFile::Existing::replace}) {
    AtomicFile file(scratch_.path() / "file");
    file.write("whole", 5);
    std::vector<std::string> steps;
    before_fsync = [&](int fd) {
      struct stat status {};
      ASSERT_EQ(::fstat(fd, &status), 0);
      const bool is_folder = S_ISDIR(status.st_mode);
      steps.push_back(is_folder ? "fsync the folder" : "fsync " + std::to_string(status.st_size) + " bytes");
    };
    before_renameat2 = [&] { steps.push_back("rename"); };
    file.commit(existing);
    EXPECT_THAT(steps, ElementsAre("fsync 5 bytes", "rename", "fsync the folder"));
  }
}

TEST_F(AtomicFiles, EveryFolderThatIsMadeIsBroughtToDisk) {
  for (const char* end : {"", "/"}) {
    SCOPED_TRACE("a path that ends with '" + std::string(end) + "'");
    const ScratchDirectory scratch;
    std::vector<fs::path> synced;
    before_fsync = [&](int fd) { synced.push_back(fs::read_symlink("/proc/self/fd/" + std::to_string(fd))); };
    ddp::CheckpointDirectory directory(scratch.path() / "some" / "new" / ("checkpoints" + std::string(end)));
    directory.save({}, 1, {});
    EXPECT_THAT(synced, testing::IsSupersetOf({scratch.path(), scratch.path() / "some", scratch.path() / "some/new",
                                               scratch.path() / "some/new/checkpoints"}));
  }
}

// The disk hangs until the test lets it go on.
TEST_F(AtomicFiles, FlightRecorderFilesOnADiskThatHangsHoldUpNoErrorForLong) {
  const ScratchDirectory scratch;
  std::promise<void> disk_answers;
  std::promise<void> first_file_is_there;
  std::atomic<int> renames{0};
  before_rename = [&, answer = disk_answers.get_future().share()] {
    answer.wait();
    if (++renames == 2) first_file_is_there.set_value();
  };
  ddp::flight_recorder::set_place({.prefix = scratch.path() / "trace_"});
  ddp::flight_recorder::Recorder recorder;
  ddp::flight_recorder::GroupLog log({.backend = "cpu", .name = "group_0", .ranks = {0}}, recorder);
  const std::string json = scratch.path() / "trace.0.json";
  EXPECT_EQ(log.write_failure("it went wrong"), "\nlook:  nothing yet: writing " + json +
                                                    " takes longer than 5 s; DDP_FLIGHT_RECORDER=PREFIX names another "
                                                    "place");
  EXPECT_FALSE(fs::exists(json));
  disk_answers.set_value();
  first_file_is_there.get_future().wait();
  EXPECT_TRUE(fs::exists(json)) << "the first of two files has its name";
}

}  // namespace
