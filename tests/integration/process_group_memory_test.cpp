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

#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/text.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;
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

// A cgroup of this test alone, of whichever version has a controller of memory here, with a limit; none where none can
// be made.
class LimitedGroup {
 public:
  explicit LimitedGroup(std::size_t bytes) {
    const fs::path root = "/sys/fs/cgroup";
    if (test::contents_of(root / "cgroup.controllers").find("memory") != std::string::npos) {
      std::ofstream(root / "cgroup.subtree_control") << "+memory";
      make(root, "memory.max", bytes);
    } else if (fs::exists(root / "memory" / "memory.limit_in_bytes")) {
      make(root / "memory", "memory.limit_in_bytes", bytes);
    }
  }
  ~LimitedGroup() {
    std::error_code error;
    if (!path_.empty()) fs::remove(path_, error);
  }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;

  bool exists() const { return !path_.empty(); }
  void enter() const { std::ofstream(path_ / "cgroup.procs") << ::getpid() << std::flush; }

 private:
  void make(const fs::path& parent, const char* limit, std::size_t bytes) {
    const fs::path group = parent / ("ddp_test_" + std::to_string(::getpid()));
    std::error_code error;
    if (!fs::create_directory(group, error)) return;
    path_ = group;
    if (std::ofstream file(group / limit); file << bytes << std::flush) return;
    fs::remove(group, error);
    path_.clear();
  }

  fs::path path_;
};

TEST(SharedMemory, BeyondTheLimitOfACgroupIsAnErrorAndTheGroupGoesOn) {
  const LimitedGroup limited(256 * kMiB);
  if (!limited.exists()) GTEST_SKIP() << "no cgroup with a limit of memory can be made here";
  run_ranks(2, [&](int rank) {
    limited.enter();
    auto group = init_process_group();
    const auto error = thrown_by<Error>([&] { group.allocate(200 * kMiB); });
    ASSERT_TRUE(error);
    const auto memory = group.allocate(kMiB);
    auto* const values = static_cast<std::int64_t*>(memory.data());
    values[0] = rank;
    group.all_reduce({values, 1});
    EXPECT_EQ(values[0], 1);
  });
}

}  // namespace
}  // namespace ddp
