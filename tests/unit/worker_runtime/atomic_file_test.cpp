// Failures and orders that depend on one moment: this program replaces the C library's flock, fsync, readdir and
// renameat2, so that a test acts, counts or fails exactly there.

#include "worker_runtime/checkpoint/atomic_file.hpp"

#include "ddp/checkpoint.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

std::function<void(int fd)> before_flock;  // called once
std::function<void(int fd)> before_fsync;  // called each time
std::function<void()> before_renameat2;    // called each time
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

}  // namespace
