// What the memory that ranks share is to the system: it has no name, needs no /dev/shm, can't be cut short, counts
// against the limits of its container, and no forked child has it.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/integration/limited_group.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using test::LimitedGroup;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;

constexpr std::size_t kMiB = 1u << 20;

std::vector<std::string> mappings_with(const std::string& part) {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::string> found;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(part) != std::string::npos) found.push_back(line);
  }
  return found;
}

std::vector<int> files_with(const std::string& part) {
  std::vector<int> found;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry, gone).string().find(part) != std::string::npos)
      found.push_back(std::stoi(entry.path().filename()));
  }
  return found;
}

TEST(SharedMemory, HasNoNameInDevShm) {
  run_ranks(3, [](int) {
    auto group = init_process_group();
    const auto memory = group.allocate(kMiB);
    std::vector<float> values(100'000, 1);
    group.all_reduce(values);
    EXPECT_THAT(mappings_with("memfd:ddp"), ::testing::Not(::testing::IsEmpty()));
    EXPECT_THAT(mappings_with("/dev/shm"), ::testing::IsEmpty());
    EXPECT_THAT(files_with("/dev/shm"), ::testing::IsEmpty());
    group.barrier();
  });
}

TEST(SharedMemory, NeedsNoRoomInDevShm) {
  Shared<std::atomic<bool>> has_no_namespaces;
  run_ranks(2, [&](int rank) {
    const bool is_alone =
        ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    if (!is_alone || ::mount("none", "/dev/shm", "tmpfs", MS_RDONLY, "size=4k") != 0) {
      *has_no_namespaces = true;
      return;
    }
    auto group = init_process_group();
    const auto memory = group.allocate(80 * kMiB);
    auto* const values = static_cast<std::int64_t*>(memory.data());
    constexpr std::size_t kCount = 80 * kMiB / sizeof(std::int64_t);
    values[kCount - 1] = rank + 1;
    group.all_reduce({values, kCount});
    EXPECT_EQ(values[kCount - 1], 3);
  });
  if (*has_no_namespaces) GTEST_SKIP() << "no mount namespace can be made here";
}

TEST(SharedMemory, CantBeCutShortByAnyRank) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    const auto memory = group.allocate(kMiB);
    const auto files = files_with("memfd:ddp");
    ASSERT_FALSE(files.empty());
    for (const int file : files) {
      EXPECT_NE(::ftruncate(file, rank * 4096), 0);
      EXPECT_EQ(errno, EPERM);
      EXPECT_NE(::fcntl(file, F_ADD_SEALS, F_SEAL_WRITE), 0) << "nor may anybody add a seal";
    }
    group.barrier();
    std::memset(memory.data(), 1, kMiB);
  });
}

TEST(SharedMemory, IsNotInAForkedChild) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    const auto memory = group.allocate(kMiB);
    group.barrier();
    if (rank == 0) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::signal(SIGSEGV, SIG_DFL);  // whatever a sanitizer makes of it
        if (!mappings_with("memfd:").empty()) ::_exit(2);
        *static_cast<volatile char*>(memory.data()) = 1;
        ::_exit(3);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << "wait status " << status;
    }
    group.barrier();
  });
}

TEST(SharedMemory, BeyondTheLimitOfACgroupIsAnErrorAndTheGroupGoesOn) {
  const LimitedGroup limited(256 * kMiB);
  if (!limited.exists()) GTEST_SKIP() << "no cgroup with a limit of memory can be made here";
  run_ranks(2, [&](int rank) {
    limited.enter();
    auto group = init_process_group();
    const auto error = thrown_by<Error>([&] { group.allocate(200 * kMiB); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                AllOf(HasSubstr("rank 0 can't have 209715200 bytes of shared memory: Cannot allocate memory: the ranks "
                                "of its host (2) need 419438592 bytes together, and 2"),
                      HasSubstr(" are available\n"), HasSubstr("\ntry:   a smaller size, fewer ranks on this host")));
    const auto memory = group.allocate(kMiB);
    auto* const values = static_cast<std::int64_t*>(memory.data());
    values[0] = rank;
    group.all_reduce({values, 1});
    EXPECT_EQ(values[0], 1);
  });
}

}  // namespace
}  // namespace ddp
