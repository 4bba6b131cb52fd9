// What the backend nccl leaves behind for who looks for a failure, over the stand-in: the flight recorder's files,
// names of groups, and NCCL's own log.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>

#include "tests/fake_gpu/backend_rank.hpp"
#include "tests/nccl/failing.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::fake_gpu {
namespace {

using ddp::test::contents_of;
using nccl_test::reduce_without_end;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

TEST(StickyError, IsInTheFlightRecordersFiles) {
  const test::ScratchDirectory scratch;
  run_ranks(1, [&](int) {
    set_variable("DDP_FLIGHT_RECORDER", scratch.path() / "trace_");
    EXPECT_EXIT(
        {
          set_faults("cudaEventRecord:20:sticky:700");
          auto group = join();
          const Array<float> values(group.device(), 100);
          reduce_without_end(group, values.range());
        },
        ::testing::ExitedWithCode(1), HasSubstr("\nlook:  " + (scratch.path() / "trace.0.json").string()));
  });
  EXPECT_THAT(contents_of(scratch.path() / "trace.0.json"),
              AllOf(HasSubstr("an illegal memory access was encountered (cudaErrorIllegalAddress)"),
                    HasSubstr("nccl:all_reduce")));
  EXPECT_TRUE(std::filesystem::exists(scratch.path() / "trace_0"));
}

TEST(SubGroups, HaveNamesOfTheirOwnInErrorsAndFiles) {
  const test::ScratchDirectory scratch;
  Shared<std::atomic<int>> done;
  run_ranks(4, [&](int rank) {
    set_variable("DDP_FLIGHT_RECORDER", scratch.path() / "trace_");
    auto group = join();
    auto half = group.split(rank / 2);  // group_0/1 and group_0/2
    auto pair = half.new_group({1, 0});
    pair.barrier();
    if (rank == 3) {
      const Array<float> values(pair.device(), 100);
      const auto error = thrown_by<TimeoutError>([&] {
        pair.all_reduce(values.range(), ReduceOp::sum, {.timeout = milliseconds(200)});
        pair.barrier();
      });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(),
                  AllOf(HasSubstr("rank 1 did not come to all_reduce"),
                        HasSubstr("where: rank 0 of 2 in group_0/2/1, which is ranks 3 and 2 of the job")));
    }
    ++*done;
    wait_until([&] { return done->load() == 4; });
  });
  EXPECT_THAT(contents_of(scratch.path() / "trace.3.json"),
              AllOf(HasSubstr("nccl:group_0\""), HasSubstr("nccl:group_0/2\""), HasSubstr("nccl:group_0/2/1\""),
                    HasSubstr("[3, 2]"), Not(HasSubstr("group_0/1"))));
}

// Rank 1 leaves without a word; rank 0 finds that in its log before it ends.
void expect_log_of_lost_peer(const std::function<void(const std::filesystem::path&)>& lead_log_to) {
  const test::ScratchDirectory scratch;
  const auto path = scratch.path() / "log";
  testing::RankProcesses ranks(2, [&](int rank) {
    set_variable("NCCL_DEBUG", rank == 0 ? "INFO" : "VERSION");
    if (rank == 1) set_faults("ncclAllReduce:3:die_inside");
    if (rank == 0) lead_log_to(path);
    auto group = join();
    const Array<float> values(group.device(), 100);
    const auto error = thrown_by<RankFailure>([&] { reduce_without_end(group, values.range()); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                AllOf(HasSubstr("remote process exited or there was a network error: connection closed by a remote"),
                      HasSubstr("NCCL's log tells more: it is in ")));
    const auto has_line = HasSubstr("NCCL WARN connection closed by a remote rank\n");
    wait_until([&] { return ::testing::Matches(has_line)(contents_of(path)); });
  });
  ranks.expect_killed(1);
  ranks.expect_success(0);
}

TEST(NcclLog, IsInItsFileAndTheErrorHasItsLine) {
  expect_log_of_lost_peer([](const auto& path) { set_variable("NCCL_DEBUG_FILE", path); });
}

TEST(NcclLog, ReachesTheRanksOutputThoughTheRankLivesOn) {
  expect_log_of_lost_peer([](const auto& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ::dup2(fd, STDOUT_FILENO);
    ::close(fd);
  });
}

}  // namespace
}  // namespace ddp::fake_gpu
