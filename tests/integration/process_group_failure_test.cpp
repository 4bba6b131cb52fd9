// What the ranks of a group see when one of them dies, stays away, or does something else. Times are printed, not
// asserted: a test must not fail on a slow machine.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::main_thread_sleeps;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A timeout longer than ctest lets any test run: only a notice of the failure can end a call under it.
constexpr milliseconds kBeyondTheTest = std::chrono::hours(1);
// Of a call that one rank does not make: long enough for all others to make it on a loaded machine.
constexpr milliseconds kLimit{2'000};

template <class Call>
void expect_group_is_useless(ProcessGroup& group, const Call& call, const std::string& first_reason) {
  const auto again = thrown_by<AbortedError>(call);
  ASSERT_TRUE(again);
  EXPECT_THAT(again->what(), HasSubstr(first_reason));
  thrown_by<AbortedError>([&] { group.allocate(1); });
  thrown_by<AbortedError>([&] { static_cast<void>(group.all_reduce_async(MemoryRange{})); });
}

TEST(Mismatch, EveryRankThrowsWithBothSides) {
  run_ranks(3, [](int rank) {
    auto group = init_process_group();
    group.barrier();
    std::vector<float> values(100);
    const auto call = [&] { rank == 1 ? group.barrier() : group.all_reduce(values); };
    const auto error = thrown_by<MismatchError>(call);
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                HasSubstr("rank 0 called all_reduce of 100 float32 (sum), rank 1 called barrier (call 2)"));
    expect_group_is_useless(group, call, "rank 1 called barrier");
  });
}

TEST(Mismatch, CountTypeOperationAndRootMatter) {
  const auto differ = [](const std::function<void(ProcessGroup&, int)>& call) {
    run_ranks(2, [&](int rank) {
      auto group = init_process_group();
      thrown_by<MismatchError>([&] { call(group, rank); });
    });
  };
  differ([](ProcessGroup& group, int rank) {
    std::vector<float> values(static_cast<std::size_t>(10 + rank));
    group.all_reduce(values);
  });
  differ([](ProcessGroup& group, int rank) {
    std::vector<std::int64_t> integers(10);
    std::vector<double> reals(10);
    group.all_reduce(rank == 0 ? MemoryRange(integers) : MemoryRange(reals));
  });
  differ([](ProcessGroup& group, int rank) {
    std::vector<float> values(10);
    group.all_reduce(values, rank == 0 ? ReduceOp::sum : ReduceOp::average);
  });
  differ([](ProcessGroup& group, int rank) {
    std::vector<float> values(10);
    group.broadcast(values, rank);
  });
  differ([](ProcessGroup& group, int rank) { group.allocate(rank == 0 ? 100 : 200); });
}

TEST(Timeout, NamesTheMissingRankAndWhatItDidLast) {
  Shared<std::atomic<int>> timed_out;
  run_ranks(3, [&](int rank) {
    auto group = init_process_group();
    std::vector<float> values(7);
    group.all_reduce(values);
    if (rank == 2) return wait_until([&] { return timed_out->load() == 2; });

    const auto call = [&] { group.barrier({.timeout = kLimit}); };
    const auto error = thrown_by<TimeoutError>(call);
    ++*timed_out;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(2));
    EXPECT_THAT(error->what(), AllOf(HasSubstr("rank 2 did not come to barrier, call 2, within 2000 ms"),
                                     HasSubstr("last called all_reduce of 7 float32 (sum), call 1"),
                                     HasSubstr("rank " + std::to_string(rank) + " of 3")));
    expect_group_is_useless(group, call, "rank 2 did not come");
  });
}

TEST(Timeout, OfAMonitoredBarrierNamesAllWhoDidNotCome) {
  Shared<std::atomic<int>> timed_out;
  run_ranks(5, [&](int rank) {
    auto group = init_process_group();
    group.monitored_barrier();
    if (rank == 1 || rank >= 3) return wait_until([&] { return timed_out->load() == 2; });
    const auto error = thrown_by<TimeoutError>([&] { group.monitored_barrier({.timeout = kLimit}); });
    ++*timed_out;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1, 3, 4));
  });
}

// Ranks reduce without end, until rank 1 is killed in the midst of it.
struct Kill {
  std::atomic<int> calls;      // of rank 1
  std::atomic<Clock::rep> at;  // when the signal was sent
  std::atomic<int> survivors;
};

void reduce_until_rank_1_is_lost(ProcessGroup& group, Shared<Kill>& kill, MemoryRange values) {
  const auto reduce = [&] {
    for (;;) {
      group.all_reduce(values);
      if (group.rank() == 1) ++kill->calls;
    }
  };
  const auto error = thrown_by<RankFailure>(reduce);
  const Clock::duration took = Clock::now().time_since_epoch() - Clock::duration(kill->at.load());
  ASSERT_TRUE(error);
  EXPECT_THAT(error->ranks(), ElementsAre(1));
  EXPECT_THAT(error->what(), AllOf(HasSubstr("rank 1 (pid "), HasSubstr(") ended"), HasSubstr("all_reduce of ")));
  std::printf("rank %d: %.2f ms from the kill to RankFailure\n", group.rank(),
              std::chrono::duration<double, std::milli>(took).count());
  expect_group_is_useless(
      group, [&] { group.barrier(); }, "rank 1 (pid ");
}

void kill_rank_1(RankProcesses& ranks, Shared<Kill>& kill) {
  wait_until([&] { return kill->calls.load() > 10; });
  kill->at = Clock::now().time_since_epoch().count();
  ranks.kill(1);
  ranks.expect_killed(1);
}

TEST(Death, OfARankInACollectiveIsNoticedByAllOthers) {
  Shared<Kill> kill;
  RankProcesses ranks(3, [&](int) {
    auto group = init_process_group({.timeout = kBeyondTheTest});
    std::vector<double> values(300'000);
    reduce_until_rank_1_is_lost(group, kill, values);
  });
  kill_rank_1(ranks, kill);
  ranks.expect_success(0);
  ranks.expect_success(2);
}

TEST(Death, IsNoticedThoughAForkedChildOfTheDeadLivesOn) {
  Shared<Kill> kill;
  Shared<std::atomic<pid_t>> orphan;
  RankProcesses ranks(2, [&](int rank) {
    auto group = init_process_group({.timeout = kBeyondTheTest});
    if (rank == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(60);  // should the test die before it kills this child
        for (;;) ::pause();
      }
      *orphan = child;
    }
    std::vector<float> values(1000);
    reduce_until_rank_1_is_lost(group, kill, values);
  });
  kill_rank_1(ranks, kill);
  ranks.expect_success(0);
  ASSERT_GT(orphan->load(), 0);
  EXPECT_EQ(::kill(*orphan, SIGKILL), 0) << "the child was to outlive its parent";
}

TEST(Death, WhileOthersSleepInABarrierWakesThem) {
  Shared<std::array<std::atomic<pid_t>, 3>> in_barrier;
  RankProcesses ranks(3, [&](int rank) {
    auto group = init_process_group();
    if (rank == 1) {
      for (const std::size_t other : {0, 2}) {  // from here on they sleep nowhere but in the barrier
        wait_until([&] { return (*in_barrier)[other] != 0 && main_thread_sleeps((*in_barrier)[other]); });
      }
      ::raise(SIGKILL);
    }
    (*in_barrier)[static_cast<std::size_t>(rank)] = ::getpid();
    const auto error = thrown_by<RankFailure>([&] { group.barrier(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1));
  });
  ranks.expect_killed(1);
  ranks.expect_success(0);
  ranks.expect_success(2);
}

TEST(Death, AfterTheLastCollectiveDoesNotSpoilIt) {
  for (int round = 0; round < 20; ++round) {
    run_ranks(4, [](int) {
      auto group = init_process_group();
      std::vector<std::int64_t> ones(1, 1);
      group.all_reduce(ones);
      EXPECT_EQ(ones[0], 4);
      std::_Exit(::testing::Test::HasFailure() ? 1 : 0);  // at once: others may still be in the call
    });
  }
}

// Ranks 0 and 2 go on without rank 1, which is stopped in a collective and continued when they are at work again.
struct Stop {
  std::atomic<int> next_store_port;
  std::atomic<int> calls;  // of rank 1
  std::atomic<int> at_work_again;
  std::atomic<bool> has_rank_1_thrown;
};

constexpr std::size_t kSharedDoubles = 100'000;
constexpr int kCallsAfterwards = 500;

void reduce_until_it_throws(ProcessGroup& group, Shared<Stop>& stop) {
  auto memory = group.allocate(kSharedDoubles * sizeof(double));
  const MemoryRange values(static_cast<double*>(memory.data()), kSharedDoubles);
  for (;;) {
    group.all_reduce(values, ReduceOp::average, {.timeout = kLimit});
    if (group.rank() == 1) ++stop->calls;
  }
}

// The average of two equal values is that value again, so no call changes the pattern, though every one writes it.
void keep_a_pattern(ProcessGroup& group, Shared<Stop>& stop) {
  auto memory = group.allocate(kSharedDoubles * sizeof(double));
  auto* const values = static_cast<double*>(memory.data());
  std::vector<double> pattern(kSharedDoubles);
  for (std::size_t i = 0; i < kSharedDoubles; ++i) pattern[i] = 1.5 + static_cast<double>(i);
  std::copy(pattern.begin(), pattern.end(), values);
  group.all_reduce(MemoryRange(values, kSharedDoubles), ReduceOp::average);
  ++stop->at_work_again;
  for (int left = kCallsAfterwards; left > 0;) {
    std::vector<std::int64_t> seen{stop->has_rank_1_thrown ? 1 : 0};
    group.all_reduce(seen);
    if (seen[0] == 2) --left;
    group.all_reduce(MemoryRange(values, kSharedDoubles), ReduceOp::average);
    // At once: element by element it takes most of the test's time, and more than its time under sanitizers.
    ASSERT_EQ(std::memcmp(values, pattern.data(), kSharedDoubles * sizeof(double)), 0)
        << left << " calls before the end";
  }
}

TEST(Stopped, RankThatGoesOnLaterChangesNothingOfTheOthersNewGroup) {
  Shared<Stop> stop;
  RankProcesses next_store(1, [&](int) { stop->next_store_port = std::atoi(std::getenv("MASTER_PORT")); });
  next_store.expect_success(0);
  RankProcesses ranks(3, [&](int rank) {
    std::optional<ProcessGroup> group = init_process_group();
    if (rank == 1) {
      EXPECT_THROW(reduce_until_it_throws(*group, stop), Error);
      stop->has_rank_1_thrown = true;
      return;
    }
    const auto error = thrown_by<TimeoutError>([&] { reduce_until_it_throws(*group, stop); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1));
    group.reset();
    ::setenv("RANK", rank == 0 ? "0" : "1", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("MASTER_PORT", std::to_string(stop->next_store_port).c_str(), 1);
    auto next = init_process_group();
    keep_a_pattern(next, stop);
  });
  wait_until([&] { return stop->calls.load() > 10; });
  ranks.stop(1);
  wait_until([&] { return stop->at_work_again.load() == 2; });
  EXPECT_FALSE(stop->has_rank_1_thrown);
  ranks.go_on(1);
  ranks.expect_success(0);
  ranks.expect_success(2);
  EXPECT_TRUE(stop->has_rank_1_thrown);
  ranks.expect_success(1);
}

TEST(Leaving, IsToldToThoseWhoCallOn) {
  run_ranks(2, [](int rank) {
    std::optional<ProcessGroup> group = init_process_group();
    group->barrier();
    if (rank == 1) group.reset();
    if (rank == 1) return;
    const auto error = thrown_by<RankFailure>([&] { group->barrier(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1));
    EXPECT_THAT(error->what(), HasSubstr("has left the group"));
  });
}

TEST(Abort, FromAnotherThreadEndsACollectiveHereAndThere) {
  run_ranks(3, [](int rank) {
    auto group = init_process_group();
    std::vector<float> values(10);
    const auto broadcast_for_ever = [&] {
      for (;;) group.broadcast(values, 1);
    };
    if (rank != 1) {
      const auto error = thrown_by<RankFailure>(broadcast_for_ever);
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(1));
      EXPECT_THAT(error->what(), HasSubstr("aborted the group"));
      return;
    }
    std::thread other([&] { group.abort("the user pressed a key"); });
    const auto error = thrown_by<AbortedError>(broadcast_for_ever);
    other.join();
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("the user pressed a key"));
  });
}

TEST(Abort, WakesAThreadThatWaitsForAnother) {
  Shared<std::atomic<bool>> done;
  run_ranks(2, [&](int rank) {
    auto group = init_process_group();
    if (rank == 1) return wait_until([&] { return done->load(); });
    std::thread other([&] { group.abort("enough"); });
    const auto error = thrown_by<AbortedError>([&] { group.barrier(); });
    other.join();
    *done = true;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("enough"));
  });
}

}  // namespace
}  // namespace ddp
