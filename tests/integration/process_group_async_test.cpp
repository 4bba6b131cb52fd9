// Collectives that run while the program does something else.
//
// This program stands in for the C library's clock_gettime, so that minutes can pass at once.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "tests/integration/rank_processes.hpp"

namespace {

std::atomic<std::int64_t>* seconds_ahead = nullptr;  // of the real time; the same in all ranks

}  // namespace

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_MONOTONIC && seconds_ahead != nullptr) time->tv_sec += seconds_ahead->load();
  return result;
}

namespace ddp {
namespace {

using testing::run_ranks;

TEST(Async, CollectivesRunInTheOrderOfTheirCalls) {
  run_ranks(3, [](int rank) {
    auto group = init_process_group();
    std::vector<std::int64_t> value(1, rank + 1);
    std::vector<std::int64_t> gathered(3);
    std::vector<Work> works;
    for (int i = 0; i < 5; ++i) {  // each works on what the one before it wrote
      works.push_back(group.all_gather_async(value, gathered));
      works.push_back(group.reduce_scatter_async(gathered, value));
      works.push_back(group.all_reduce_async(value));
    }
    works.back().wait();
    EXPECT_EQ(value[0], 18 * 9 * 9 * 9 * 9);
    for (const Work& work : works) EXPECT_TRUE(work.is_completed());
  });
}

TEST(Async, ManyInFlightAndWaitedForInAnyOrder) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    constexpr std::size_t kWorks = 500;
    const auto memory = group.allocate(kWorks * sizeof(float));
    auto* const shared = static_cast<float*>(memory.data());
    std::vector<std::vector<double>> plain(kWorks, std::vector<double>(37, rank));
    std::vector<Work> works;
    for (std::size_t i = 0; i < kWorks; ++i) {
      shared[i] = static_cast<float>(i);
      works.push_back(group.all_reduce_async({shared + i, 1}));
      works.push_back(group.all_reduce_async(plain[i]));
    }
    const std::size_t step = rank == 0 ? 7 : 11;  // both have no factor in common with 1000: every work has its turn
    for (std::size_t i = 0; i < works.size(); ++i) works[i * step % works.size()].wait();
    for (std::size_t i = 0; i < kWorks; ++i) {
      EXPECT_EQ(shared[i], static_cast<float>(2 * i));
      EXPECT_EQ(plain[i][36], 1);
    }
  });
}

TEST(Async, LettingGoOfAWorkCancelsNothing) {
  run_ranks(2, [](int) {
    auto group = init_process_group();
    std::vector<std::vector<float>> values(50, std::vector<float>(1000, 1));
    for (auto& some : values) static_cast<void>(group.all_reduce_async(some));
    group.barrier();  // completes behind all of them
    for (const auto& some : values) EXPECT_EQ(some[999], 2);
  });
}

TEST(Async, BlockingCallsMixWithOthers) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    std::vector<std::int64_t> value(1, 1);
    for (int i = 0; i < 20; ++i) {
      auto work = group.all_reduce_async(value);
      if (rank == 0) work.wait();  // ranks need not wait alike
      group.all_reduce(value);
    }
    EXPECT_EQ(value[0], std::int64_t{1} << 40);
  });
}

TEST(Async, AWaitMayHaveALimitAfterWhichTheWorkGoesOn) {
  testing::Shared<std::atomic<bool>> waited;
  run_ranks(2, [&](int rank) {
    auto group = init_process_group();
    if (rank == 1) testing::wait_until([&] { return waited->load(); });
    std::vector<std::int64_t> value(1, rank + 1);
    auto work = group.all_reduce_async(value);
    if (rank == 0) {
      EXPECT_FALSE(work.wait_for(std::chrono::milliseconds(20)));
      *waited = true;
    }
    EXPECT_TRUE(work.wait_for(std::chrono::minutes(1)));
    EXPECT_EQ(value[0], 3);
    EXPECT_TRUE(work.wait_for(std::chrono::milliseconds(0)));
  });
}

TEST(Async, CallbacksHearOfTheEndAndOfTheError) {
  run_ranks(2, [&](int rank) {
    auto group = init_process_group();
    std::vector<std::int64_t> value(1, 1);
    std::atomic<int> good{0};
    std::atomic<int> bad{0};
    auto work = group.all_reduce_async(value);
    work.on_completed([&](const std::exception_ptr& error) { good += error ? 100 : 1; });
    work.wait();
    std::vector<float> values(static_cast<std::size_t>(5 + rank));
    auto mismatch = group.all_reduce_async(values);
    mismatch.on_completed([&](const std::exception_ptr& error) {
      try {
        std::rethrow_exception(error);
      } catch (const MismatchError&) {
        ++bad;
      }
    });
    testing::wait_until([&] { return good == 1 && bad == 1; });
    EXPECT_THROW(group.barrier(), AbortedError) << "the error itself has been told";
    group = {};
    EXPECT_EQ(good, 1);
    EXPECT_EQ(bad, 1);
  });
}

TEST(Async, ACallbackMayHoldTheLastHandleOfItsGroup) {
  testing::Shared<std::atomic<bool>> may_end;
  run_ranks(2, [&](int rank) {
    auto group = init_process_group();
    std::vector<std::int64_t> value(1, 1);
    if (rank == 1) {
      testing::wait_until([&] { return may_end->load(); });
      group.all_reduce(value);
      return;
    }
    std::atomic<bool> is_gone{false};
    {
      const std::shared_ptr<void> at_its_end(nullptr, [&](void*) { is_gone = true; });
      group.all_reduce_async(value).on_completed([at_its_end, held = group](const std::exception_ptr&) {});
    }
    group = {};
    *may_end = true;
    testing::wait_until([&] { return is_gone.load(); });
    EXPECT_EQ(value[0], 2);
  });
}

TEST(Async, ACallbackMayCallItsGroup) {
  testing::Shared<std::atomic<bool>> may_end;
  run_ranks(2, [&](int rank) {
    auto group = init_process_group();
    std::vector<std::int64_t> value(1, 1);
    if (rank == 1) {
      testing::wait_until([&] { return may_end->load(); });
      group.all_reduce(value);
      group.all_reduce(value);
      return;
    }
    std::atomic<bool> has_called{false};
    group.all_reduce_async(value).on_completed([&](const std::exception_ptr&) {
      group.all_reduce(value);
      has_called = true;
    });
    *may_end = true;
    testing::wait_until([&] { return has_called.load(); });
    EXPECT_EQ(value[0], 4);
  });
}

TEST(Async, AnErrorNobodyWaitedForIsThrownByTheNextCall) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    std::vector<float> values(static_cast<std::size_t>(5 + rank));
    auto work = group.all_reduce_async(values);
    testing::wait_until([&] { return work.is_completed(); });
    EXPECT_THROW(group.barrier(), MismatchError);
    EXPECT_THROW(group.barrier(), AbortedError);
    EXPECT_THROW(work.wait(), MismatchError);
  });
}

TEST(Async, AnErrorThatWasWaitedForIsNotThrownAgain) {
  testing::Shared<std::atomic<bool>> submitted;
  run_ranks(2, [&](int rank) {
    auto group = init_process_group();
    if (rank == 1) {
      testing::wait_until([&] { return submitted->load(); });
      EXPECT_THROW(group.barrier(), MismatchError);
      return;
    }
    std::vector<float> values(5);
    auto work = group.all_reduce_async(values);
    auto behind = group.all_reduce_async(values);
    *submitted = true;
    EXPECT_THROW(work.wait(), MismatchError);
    EXPECT_THROW(behind.wait(), AbortedError);
    EXPECT_THROW(group.barrier(), AbortedError);
  });
}

// Its time ends long before its turn comes: late enough for a wait that woke then to look like that of a stopped
// process, which gets its full time again.
TEST(Async, TimeRunsForAWorkThatStandsInLine) {
  constexpr std::chrono::minutes kTimeout{5};
  testing::Shared<std::atomic<std::int64_t>> ahead;
  testing::Shared<std::atomic<bool>> submitted, done;
  seconds_ahead = &*ahead;
  run_ranks(2, [&](int rank) {
    auto group = init_process_group({.timeout = 2 * kTimeout});
    std::vector<float> values(1);
    if (rank == 1) {
      testing::wait_until([&] { return submitted->load(); });
      *ahead = std::chrono::seconds(kTimeout).count() + 2;
      group.all_reduce(values);
      return testing::wait_until([&] { return done->load(); });
    }
    auto first = group.all_reduce_async(values);
    auto second = group.all_reduce_async(values, ReduceOp::sum, {.timeout = kTimeout});
    *submitted = true;
    first.wait();
    EXPECT_THROW(second.wait(), TimeoutError) << "it got its full time again";
    *done = true;
  });
  seconds_ahead = nullptr;
}

TEST(Async, TheEndOfAGroupEndsItsWorks) {
  testing::Shared<std::atomic<bool>> ended;
  run_ranks(2, [&](int rank) {
    std::optional<ProcessGroup> group = init_process_group();
    if (rank == 1) return testing::wait_until([&] { return ended->load(); });  // calls nothing: no work can complete
    std::vector<std::vector<float>> values(10, std::vector<float>(10));
    std::vector<Work> works;
    for (auto& some : values) works.push_back(group->all_reduce_async(some));
    group.reset();
    *ended = true;
    for (Work& work : works) EXPECT_THROW(work.wait(), AbortedError);
  });
}

}  // namespace
}  // namespace ddp
