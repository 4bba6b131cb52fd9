// What the ranks of a group of the backend nccl see when something goes wrong under way, over the stand-in and on a
// GPU: what needs no fault of theirs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/nccl/failing.hpp"
#include "tests/nccl/rank.hpp"

namespace ddp::nccl_test {
namespace {

using std::chrono::milliseconds;
using testing::AllHere;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

using Values = std::vector<float>;

TEST(Timeout, NamesTheMissingRankAndHowFarAllCame) {
  const AllHere all_here;
  Shared<std::atomic<int>> timed_out;
  run_ranks(3, [&](int rank) {
    auto group = join();
    const Array<float> values(group.device(), 100);
    group.all_reduce(values.range());
    group.barrier();
    all_here.wait(3);
    if (rank == 2) {
      wait_until([&] { return timed_out->load() == 2; });
      const auto error = thrown_by<RankFailure>([&] { group.barrier(); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("gave up on the group: it waited 2000 ms for this rank in all_reduce"));
      return expect_group_is_useless(group, "gave up on the group");
    }
    const auto error = thrown_by<TimeoutError>([&] {
      group.all_reduce(values.range(), ReduceOp::sum, {.timeout = milliseconds(2'000)});
      group.barrier();
    });
    ++*timed_out;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(2));
    EXPECT_THAT(
        error->what(),
        AllOf(HasSubstr("rank 2 did not come to all_reduce of 100 float32 (sum), call 3, 400 bytes, within 2000 ms"),
              HasSubstr("where: rank " + std::to_string(rank) + " of 3"),
              HasSubstr("ranks: rank 2 called 2 and completed it")));
    expect_group_is_useless(group, "rank 2 did not come");
  });
}

TEST(Timeout, IsThrownByTheNextCallWhereNobodyWaited) {
  const AllHere all_here;
  Shared<std::atomic<int>> timed_out;
  run_ranks(2, [&](int rank) {
    auto group = join();
    connect(group);
    all_here.wait(2);
    if (rank == 1) return wait_until([&] { return timed_out->load() == 1; });
    const Array<float> values(group.device(), 10);
    {
      Work work = group.all_reduce_async(values.range(), ReduceOp::sum, {.timeout = milliseconds(200)});
      wait_until([&] { return work.is_completed(); });
    }
    thrown_by<TimeoutError>([&] { group.barrier(); });
    expect_group_is_useless(group, "rank 1 did not come");
    ++*timed_out;
  });
}

TEST(Timeout, OfASendNamesItsPeer) {
  const AllHere all_here;
  Shared<std::atomic<int>> timed_out;
  run_ranks(2, [&](int rank) {
    auto group = join();
    connect(group);
    all_here.wait(2);
    if (rank == 1) return wait_until([&] { return timed_out->load() == 1; });
    const Array<float> values(group.device(), 10);
    Work work = group.receive_async(values.range(), 1, {.timeout = milliseconds(200)});
    wait_until([&] { return work.is_completed(); });
    const auto error = thrown_by<TimeoutError>([&] { work.wait(); });
    ++*timed_out;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1));
    EXPECT_THAT(error->what(), HasSubstr("rank 1 did not come to receive of 10 float32 from rank 1, 40 bytes"));
  });
}

TEST(Death, OfARankIsTheFailureOfTheOthers) {
  const AllHere all_here;
  RankProcesses ranks(3, [&](int rank) {
    auto group = join();
    connect(group);
    const Array<float> values(group.device(), 100);
    all_here.wait(3);
    if (rank == 1) ::raise(SIGKILL);
    const auto error = thrown_by<RankFailure>([&] { reduce_without_end(group, values.range()); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1));
    expect_group_is_useless(group, "rank 1");
  });
  ranks.expect_killed(1);
  ranks.expect_success(0);
  ranks.expect_success(2);
}

TEST(Death, AfterTheLastCollectiveSpoilsNothing) {
  Shared<std::atomic<int>> done;
  RankProcesses ranks(2, [&](int rank) {
    auto group = join();
    const Array<float> values(group.device(), Values(10, 1));
    group.all_reduce(values.range());
    EXPECT_EQ(values.values(), Values(10, 2));
    ++*done;
    wait_until([&] { return done->load() == 2; });
    if (rank == 1) ::raise(SIGKILL);
  });
  ranks.expect_killed(1);
  ranks.expect_success(0);
}

TEST(Abort, EndsCallsHereAndThere) {
  run_ranks(3, [](int rank) {
    auto group = join();
    const Array<float> values(group.device(), 100);
    if (rank != 1) {
      const auto error = thrown_by<RankFailure>([&] { reduce_without_end(group, values.range()); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(1));
      EXPECT_THAT(error->what(), HasSubstr("rank 1 aborted the group: the user pressed a key"));
      return;
    }
    std::thread other([&] { group.abort("the user pressed a key"); });
    const auto error = thrown_by<AbortedError>([&] { reduce_without_end(group, values.range()); });
    other.join();
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("it was aborted: the user pressed a key"));
    expect_group_is_useless(group, "the user pressed a key");
  });
}

TEST(Abort, LetsTheCallersStreamGoOn) {
  const AllHere all_here;
  Shared<std::atomic<bool>> done;
  run_ranks(2, [&](int rank) {
    auto group = join();
    connect(group);
    all_here.wait(2);
    if (rank == 1) return wait_until([&] { return done->load(); });
    const Array<float> values(group.device(), 100);
    group.all_reduce(values.range());
    std::thread other([&] { group.abort("enough"); });
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    other.join();
    thrown_by<AbortedError>([&] { group.all_reduce(values.range()); });
    *done = true;
  });
}

TEST(Leaving, IsSeenByThoseWhoCallOn) {
  run_ranks(2, [](int rank) {
    set_variable("FAKE_NCCL_DEAD_PEER", "hang");                         // so that the stand-in itself says nothing
    std::optional<ProcessGroup> group = join(std::chrono::minutes(10));  // not seen by a deadline
    connect(*group);
    const Array<float> values(group->device(), 100);
    if (rank == 1) return group.reset();
    const auto error = thrown_by<RankFailure>([&] { reduce_without_end(*group, values.range()); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1));
    EXPECT_THAT(error->what(), HasSubstr("rank 1 has left the group"));
  });
}

TEST(Leaving, WithCallsUnderWayEndsThemHereAndThere) {
  const AllHere all_here;
  Shared<std::atomic<bool>> has_left;
  run_ranks(2, [&](int rank) {
    std::optional<ProcessGroup> group = join();
    connect(*group);
    all_here.wait(2);
    const Array<float> values(group->device(), 100);
    if (rank == 1) {
      Work work = group->all_reduce_async(values.range(), ReduceOp::sum, {.timeout = std::chrono::seconds(1)});
      group.reset();
      *has_left = true;
      expect_live("ncclComm", 0);
      EXPECT_TRUE(thrown_by<TimeoutError>([&] { work.wait(); })) << "it is given the time that its call has";
      return;
    }
    wait_until([&] { return has_left->load(); });
    const auto error = thrown_by<RankFailure>([&] { reduce_without_end(*group, values.range()); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("rank 1"));
  });
}

TEST(Failure, IsFollowedByTheNextGroupInTheSameProcess) {
  Shared<std::atomic<int>> done;
  run_ranks(2, [&](int rank) {
    for (int round = 1; round <= 3; ++round) {
      auto group = join();
      const Array<float> values(group.device(), Values(10, 1));
      group.all_reduce(values.range());
      EXPECT_EQ(values.values(), Values(10, 2));
      ++*done;
      wait_until([&] { return done->load() >= 2 * round; });
      if (rank == 1) group.abort("another one");
      EXPECT_THROW(reduce_without_end(group, values.range()), Error);
    }
    expect_live("ncclComm", 0);
  });
}

}  // namespace
}  // namespace ddp::nccl_test
