// Failures and orders that depend on one moment: this program replaces the C library's flock, fsync, readdir, rename,
// renameat2 and write, so that a test acts, counts or fails exactly there.

#include "worker_runtime/checkpoint/atomic_file.hpp"

#include "ddp/checkpoint.hpp"
#include "tests/text.hpp"
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
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

std::function<void(int fd)> before_flock;  // called once
std::function<void(int fd)> before_fsync;  // called each time
std::function<void()> before_renameat2;    // called each time
std::function<void()> before_rename;       // called each time
int readdir_calls_left = -1;               // that succeed; -1: all
// Called for each write(), which does what it returns: writes so many bytes at most, or fails with -errno.
std::function<ssize_t(int fd, std::size_t bytes)> before_write;

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

__attribute__((visibility("default"))) ssize_t write(int fd, const void* data, size_t bytes) {
  const ssize_t allowed = before_write ? before_write(fd, bytes) : static_cast<ssize_t>(bytes);
  if (allowed >= 0) return ::syscall(SYS_write, fd, data, static_cast<size_t>(allowed));
  errno = static_cast<int>(-allowed);
  return -1;
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
    before_write = nullptr;
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

bool is_direct(int fd) { return (::fcntl(fd, F_GETFL) & O_DIRECT) != 0; }

// Memory that begins at a page, as that of a checkpoint does.
class LargeData {
 public:
  explicit LargeData(std::size_t bytes)
      : bytes_(bytes), memory_(static_cast<std::uint32_t*>(std::aligned_alloc(4096, (bytes / 4096 + 1) * 4096))) {
    std::iota(memory_.get(), memory_.get() + bytes / sizeof(std::uint32_t) + 1, 1u);
  }
  std::string_view all() const { return {reinterpret_cast<const char*>(memory_.get()), bytes_}; }

 private:
  struct Free {
    void operator()(std::uint32_t* memory) const { std::free(memory); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::uint32_t, Free> memory_;
};

TEST_F(AtomicFiles, LargeDataGoesPastThePageCacheUpToItsLastPage) {
  const int probe = ::open(scratch_.path().c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (probe < 0) GTEST_SKIP() << "the file system of " << scratch_.path() << " can't go past the page cache";
  ::close(probe);
  const LargeData data((3 << 20) + 4096 + 17);
  std::vector<std::pair<bool, std::size_t>> writes;
  before_write = [&](int fd, std::size_t bytes) {
    writes.emplace_back(is_direct(fd), bytes);
    return static_cast<ssize_t>(bytes);
  };
  AtomicFile file(scratch_.path() / "file");
  file.write(data.all().data(), data.all().size());
  EXPECT_THAT(writes, ElementsAre(std::pair(true, (3u << 20) + 4096u), std::pair(false, 17u)));
  writes.clear();
  file.write(data.all().data(), data.all().size());  // begins within a page of the file
  EXPECT_THAT(writes, ElementsAre(std::pair(false, data.all().size())));
  file.commit(AtomicFile::Existing::refuse);
  EXPECT_TRUE(ddp::test::contents_of(scratch_.path() / "file") == std::string(data.all()) + std::string(data.all()));
}

// A file system that takes the flag and refuses the write, or a device that is full after some pages.
TEST_F(AtomicFiles, LargeDataThatCanNotGoPastThePageCacheIsWrittenAllTheSame) {
  const LargeData data((2 << 20) + 5);
  for (const std::vector<ssize_t>& answers : std::vector<std::vector<ssize_t>>{
           {-EINVAL}, {-EFAULT}, {-EINTR, -EOPNOTSUPP}, {8192, -EIO}, {1 << 20, -EINTR, 4096, 0}}) {
    SCOPED_TRACE(testing::PrintToString(answers));
    std::size_t next = 0;
    before_write = [&](int fd, std::size_t bytes) {
      return is_direct(fd) && next < answers.size() ? answers[next++] : static_cast<ssize_t>(bytes);
    };
    AtomicFile file(scratch_.path() / "file");
    file.write(data.all().data(), data.all().size());
    file.commit(AtomicFile::Existing::replace);
    EXPECT_TRUE(ddp::test::contents_of(scratch_.path() / "file") == data.all());
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
