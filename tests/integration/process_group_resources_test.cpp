// What a process group holds: a forked child has no part in it, memory that can't be had is an error on all ranks, and
// nothing is left behind.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/sanitized.hpp"

namespace ddp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_ranks;
using testing::thrown_by;

TEST(Fork, AChildHasNoPartInTheGroup) {
  run_ranks(2, [](int rank) {
    auto group = std::make_optional(init_process_group());
    auto memory = std::make_optional(group->allocate(4096));
    std::memset(memory->data(), 17, 4096);
    auto work = std::make_optional(group->all_reduce_async(MemoryRange{}));
    work->wait();
    if (rank == 0) {
      const pid_t child = ::fork();
      if (child == 0) {
        thrown_by<InvalidArgument>([&] { group->barrier(); });
        thrown_by<InvalidArgument>([&] { group->abort("a child's opinion"); });
        thrown_by<InvalidArgument>([&] { work->wait(); });
        work.reset();
        memory.reset();
        group.reset();
        ::_exit(::testing::Test::HasFailure() ? 1 : 0);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    group->barrier();
    EXPECT_EQ(static_cast<char*>(memory->data())[4095], 17) << "the child gave the parent's pages back";
  });
}

TEST(Fork, AChildMayMakeAGroupOfItsOwn) {
  auto parents = init_process_group();
  run_ranks(2, [](int) {
    auto group = init_process_group();
    group.barrier();
  });
  parents.barrier();
}

TEST(Allocate, FailsOnAllRanksWhereItFailsOnOne) {
  run_ranks(3, [](int rank) {
    auto group = init_process_group();
    auto first = group.allocate(1 << 20);
    if (rank == 1) {
      const rlimit limit{16u << 20, 16u << 20};
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    const auto error = thrown_by<Error>([&] { group.allocate(64u << 20); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("rank 1 can't have 67108864 bytes"), HasSubstr("File too large"),
                                     HasSubstr("RLIMIT_FSIZE"), HasSubstr("try:   `ulimit -f unlimited`")));

    auto second = group.allocate(1000);  // the group goes on
    auto* const values = static_cast<std::int64_t*>(second.data());
    values[0] = rank;
    group.all_reduce({values, 1});
    EXPECT_EQ(values[0], 3);
  });
}

TEST(Allocate, RefusesWhatNoHostHas) {
  run_ranks(2, [](int) {
    auto group = init_process_group();
    thrown_by<InvalidArgument>([&] { group.allocate(0); });
    for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX / 2, std::size_t{1} << 50}) {
      const auto error = thrown_by<Error>([&] { group.allocate(bytes); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("rank 0 can't have"));
      const bool is_beyond_files = bytes >= SIZE_MAX / 2;
      EXPECT_THAT(error->what(), HasSubstr(is_beyond_files ? "no file can be that large" : " bytes together, and "));
      EXPECT_THAT(error->what(), HasSubstr("try:   a smaller size"));
      EXPECT_THAT(error->what(), Not(HasSubstr("ulimit")));
    }
    group.barrier();
  });
}

// There is enough memory, but no address space for it.
TEST(Allocate, RefusedByTheSystemSaysWhatWasAvailableThen) {
  if (test::kIsSanitized) GTEST_SKIP() << "a sanitizer has its own use of address space";
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    rlimit old{};
    ASSERT_EQ(::getrlimit(RLIMIT_AS, &old), 0);
    if (rank == 1) {
      std::ifstream statm("/proc/self/statm");
      rlim_t pages = 0;
      statm >> pages;
      const rlimit limit{pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (32u << 20), old.rlim_max};
      ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    }
    const auto error = thrown_by<Error>([&] { group.allocate(64u << 20); });
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &old), 0);
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("rank 1 can't have 67108864 bytes"), HasSubstr("Cannot allocate memory"),
                                     HasSubstr(" are available, but the system refuses them"),
                                     HasSubstr("try:   compare `ulimit -v`")));
    group.barrier();
  });
}

std::size_t open_files() {
  const auto begin = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator{}));
}

std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

void use_a_group() {
  auto group = init_process_group();
  const auto memory = group.allocate(10'000);
  group.all_reduce({static_cast<float*>(memory.data()), 100});
  group.all_reduce_async({static_cast<float*>(memory.data()), 100}).wait();
}

TEST(Leaks, NeitherFilesNorMappingsGrowOver100Groups) {
  run_ranks(2, [](int) {
    for (int i = 0; i < 10; ++i) use_a_group();
    const std::size_t files_before = open_files();
    const std::size_t mappings_before = mappings();
    for (int i = 0; i < 100; ++i) use_a_group();
    EXPECT_EQ(open_files(), files_before);
    EXPECT_LE(mappings(), mappings_before + 50);  // the allocator's own come and go; a leak would add 100
  });
}

// Of the group's shared file: what its pages take.
std::uint64_t shared_bytes() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().find("memfd:ddp") == std::string::npos) continue;
    struct stat status {};
    if (::stat(entry.path().c_str(), &status) == 0) return static_cast<std::uint64_t>(status.st_blocks) * 512;
  }
  ADD_FAILURE() << "there is no shared file";
  return 0;
}

TEST(Leaks, FreedMemoryGoesBackToTheSystem) {
  run_ranks(2, [](int) {
    auto group = init_process_group();
    const std::uint64_t before = shared_bytes();
    group.barrier();
    for (int i = 0; i < 5; ++i) {
      auto memory = std::make_optional(group.allocate(16u << 20));
      static_cast<char*>(memory->data())[0] = 1;
      EXPECT_GE(shared_bytes(), before + (32u << 20));
      group.barrier();
      memory.reset();
      group.barrier();
      EXPECT_EQ(shared_bytes(), before);
      group.barrier();
    }
  });
}

}  // namespace
}  // namespace ddp
