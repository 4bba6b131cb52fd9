#include "worker_runtime/backends/cpu/memory/available_memory.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::cpu_backend {
namespace {

class AvailableMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    write("proc/meminfo", "MemTotal:  8000 kB\nMemFree:  100 kB\nMemAvailable:  4000 kB\nHugePages_Total:  0\n");
    write("proc/self/cgroup", "4:memory:/other\n0::/job/step\n");
  }

  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_.path() / name).parent_path());
    std::ofstream(root_.path() / name) << text;
  }

  std::uint64_t available() { return available_memory_bytes({root_.path() / "proc", root_.path() / "cgroup"}); }

 private:
  test::ScratchDirectory root_;
};

TEST_F(AvailableMemory, IsWhatTheHostSaysWithoutLimits) {
  EXPECT_EQ(available(), 4'096'000u);
  write("cgroup/job/memory.max", "max\n");
  write("cgroup/job/memory.current", "123\n");
  EXPECT_EQ(available(), 4'096'000u);
}

TEST_F(AvailableMemory, IsBoundedByTheLimitsOfAllParents) {
  write("cgroup/job/memory.max", "1000000\n");
  write("cgroup/job/memory.current", "400000\n");
  EXPECT_EQ(available(), 600'000u);
  write("cgroup/job/step/memory.max", "500000\n");
  write("cgroup/job/step/memory.current", "600000\n");
  EXPECT_EQ(available(), 0u);
}

TEST_F(AvailableMemory, CountsAsFreeWhatTheKernelCanDrop) {
  write("cgroup/job/memory.max", "1000000\n");
  write("cgroup/job/memory.current", "900000\n");
  write("cgroup/job/memory.stat", "anon 100000\nfile 800000\nshmem 300000\n");
  EXPECT_EQ(available(), 600'000u);
}

TEST_F(AvailableMemory, IsBoundedByTheLimitsOfTheFirstVersionOfCgroups) {
  write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("cgroup/memory/memory.usage_in_bytes", "400000\n");
  EXPECT_EQ(available(), 4'096'000u);
  write("cgroup/memory/other/memory.limit_in_bytes", "1000000\n");
  write("cgroup/memory/other/memory.usage_in_bytes", "900000\n");
  write("cgroup/memory/other/memory.stat", "cache 1\nshmem 1\ntotal_cache 800000\ntotal_shmem 300000\n");
  EXPECT_EQ(available(), 600'000u);
}

TEST_F(AvailableMemory, WithoutAnyFileHasNoBound) {
  EXPECT_EQ(available_memory_bytes({"/nowhere", "/nowhere"}), UINT64_MAX);
}

TEST(AvailableMemoryOfThisHost, IsMoreThanNothing) { EXPECT_GT(available_memory_bytes(), 0u); }

}  // namespace
}  // namespace ddp::cpu_backend
