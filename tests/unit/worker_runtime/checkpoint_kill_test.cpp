// A rank is killed after each call of the system that saving a checkpoint makes: this program replaces the C library's
// calls that change files, and counts them.
#include "ddp/checkpointer.hpp"

#include "ddp/error.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/sanitized.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace {

// How many calls are left before this process dies; below 0: it lives on. Only the thread that writes makes them.
std::atomic<int> calls_left{-1};
// Shared by the ranks: whether the second checkpoint has the name that makes it complete.
std::atomic<bool>* is_named = nullptr;

bool completes(std::string_view path) {
  return path.ends_with("_step_2/manifest.json") || path.ends_with("_step_2.safetensors");
}

long counted(long result) {
  if (calls_left >= 0 && calls_left-- == 0) ::kill(::getpid(), SIGKILL);
  return result;
}

long returned(long result) { return result; }

}  // namespace

#define DDP_REPLACED extern "C" __attribute__((visibility("default")))

DDP_REPLACED int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const long fd = ::syscall(SYS_openat, AT_FDCWD, path, flags, mode);
  return static_cast<int>((flags & (O_CREAT | O_WRONLY)) != 0 ? counted(fd) : returned(fd));
}
DDP_REPLACED ssize_t write(int fd, const void* data, size_t bytes) {
  return counted(::syscall(SYS_write, fd, data, bytes));
}
DDP_REPLACED int fsync(int fd) { return static_cast<int>(counted(::syscall(SYS_fsync, fd))); }
DDP_REPLACED int renameat2(int from_directory, const char* from, int to_directory, const char* to,
                           unsigned flags) noexcept {
  const long result = ::syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
  if (result == 0 && is_named != nullptr && completes(to)) *is_named = true;
  return static_cast<int>(counted(result));
}
DDP_REPLACED int unlink(const char* path) noexcept { return static_cast<int>(counted(::syscall(SYS_unlink, path))); }
DDP_REPLACED int remove(const char* path) noexcept {
  if (::syscall(SYS_unlink, path) == 0) return static_cast<int>(counted(0));
  return static_cast<int>(counted(::syscall(SYS_rmdir, path)));
}
DDP_REPLACED int unlinkat(int directory, const char* path, int flags) noexcept {
  return static_cast<int>(counted(::syscall(SYS_unlinkat, directory, path, flags)));
}
DDP_REPLACED int mkdir(const char* path, mode_t mode) noexcept {
  return static_cast<int>(counted(::syscall(SYS_mkdir, path, mode)));
}

namespace ddp {
namespace {

using testing::RankProcesses;
using testing::Shared;

constexpr int kRanks = 2;

CheckpointerOptions options_for(const std::filesystem::path& directory, CheckpointForm form) {
  CheckpointerOptions options;
  options.directory = directory;
  options.form = form;
  options.keep = 1;
  options.warn = [](const std::string&) {};
  return options;
}

std::vector<float> values_at(std::uint64_t step) { return std::vector<float>(50, static_cast<float>(step)); }

// Saves steps 1 and 2; the victim dies after so many calls of the second. How many calls that are depends on which rank
// makes the folder. Whether the victim came to its end.
bool save_until(const std::filesystem::path& directory, CheckpointForm form, int victim, int calls) {
  Shared<std::atomic<bool>> is_whole;
  RankProcesses ranks(kRanks, [&](int rank) {
    InitOptions init;
    init.timeout = testing::kPatience;
    ProcessGroup world = init_process_group(init);
    std::vector<float> values = values_at(1);
    Checkpointer checkpoints(world, options_for(directory, form));
    checkpoints.add({"values", {50}, values});
    checkpoints.save(1);
    checkpoints.wait();
    world.barrier();
    std::fill(values.begin(), values.end(), 2.0f);
    if (rank == victim) calls_left = calls;
    try {
      checkpoints.save(2);
      checkpoints.wait();
      if (rank == victim) *is_whole = true;
      world.barrier();
      calls_left = -1;
    } catch (const RankFailure&) {  // of the victim
    }
  });
  const int status = ranks.wait_status(victim);
  EXPECT_EQ(status, *is_whole ? 0 : SIGKILL);
  ranks.expect_success(1 - victim);
  return *is_whole;
}

// What step a new run finds, 0 for none, -1 for values that are not of that step. The ranks agree.
int found_in(const std::filesystem::path& directory, CheckpointForm form) {
  Shared<std::array<std::atomic<int>, kRanks>> found;
  testing::run_ranks(kRanks, [&](int rank) {
    ProcessGroup world = init_process_group();
    std::vector<float> values(50);
    Checkpointer checkpoints(world, options_for(directory, form));
    checkpoints.add({"values", {50}, values});
    const auto loaded = checkpoints.load();
    (*found)[static_cast<std::size_t>(rank)] = !loaded                             ? 0
                                               : values == values_at(loaded->step) ? static_cast<int>(loaded->step)
                                                                                   : -1;
    checkpoints.save(3);  // goes on in whatever the run before has left
    checkpoints.wait();
  });
  EXPECT_EQ((*found)[0], (*found)[1]);
  return (*found)[0];
}

class KillPoints : public ::testing::TestWithParam<std::tuple<CheckpointForm, int>> {};

TEST_P(KillPoints, TheNewestCompleteCheckpointLoadsAfterEachOfThem) {
  const auto [form, victim] = GetParam();
  int deaths = 0;
  for (int calls = 0;; calls += test::kIsSanitized ? 5 : 1) {
    const test::ScratchDirectory scratch;
    Shared<std::atomic<bool>> named;
    is_named = &*named;
    const bool is_whole = save_until(scratch.path(), form, victim, calls);
    is_named = nullptr;
    ASSERT_EQ(found_in(scratch.path(), form), *named ? 2 : 1) << "killed after call " << calls;
    if (is_whole) {
      EXPECT_TRUE(*named);
      break;
    }
    ++deaths;
  }
  // Rank 1 has nothing to write where rank 0 writes all.
  const bool writes = form == CheckpointForm::parts || victim == 0;
  EXPECT_GE(deaths, !writes ? 0 : test::kIsSanitized ? 1 : 5);
}

INSTANTIATE_TEST_SUITE_P(Of, KillPoints,
                         ::testing::Combine(::testing::Values(CheckpointForm::parts, CheckpointForm::single),
                                            ::testing::Values(0, 1)));

}  // namespace
}  // namespace ddp
