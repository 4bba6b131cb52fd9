// Sends, receives and coalesced calls among real processes, and what becomes of them when a rank fails.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/pair_checks.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/seccomp_filter.hpp"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::Buffer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::main_thread_sleeps;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

template <class T>
class Messages : public ::testing::Test {};
using AllTypes =
    ::testing::Types<float, double, std::int64_t, tensor::Float16, tensor::Bfloat16, std::int32_t, std::uint8_t,
                     std::int8_t, testing::Boolean, testing::Float8E4m3fn, testing::Float8E5m2>;
TYPED_TEST_SUITE(Messages, AllTypes);

TYPED_TEST(Messages, ArriveBitByBit) {
  for (const int size : {2, 3}) {
    SCOPED_TRACE("ranks: " + std::to_string(size));
    run_ranks(size, [](int) {
      auto group = init_process_group();
      testing::check_pairs<TypeParam, Buffer>(group);
    });
  }
}

void expect_death_in_midst_is_noticed(bool is_sandboxed) {
  for (const bool is_send : {true, false}) {
    Shared<std::atomic<int>> count;
    RankProcesses ranks(2, [&](int rank) {
      if (is_sandboxed) testing::refuse_system_call(SYS_process_vm_readv, EPERM);
      auto group = init_process_group();
      std::vector<float> values(3'000'000);
      const auto error = thrown_by<RankFailure>([&] {
        for (;; ++*count) is_send == (rank == 0) ? group.send(values, 1 - rank) : group.receive(values, 1 - rank);
      });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(1));
    });
    wait_until([&] { return count->load() > 10; });
    ranks.kill(1);
    ranks.expect_killed(1);
    ranks.expect_success(0);
  }
}

// As in a sandbox: what is not registered goes through the slots.
TEST(WithoutReadingEachOthersMemory, MessagesArriveBitByBit) {
  for (const int size : {2, 5}) {
    SCOPED_TRACE("ranks: " + std::to_string(size));
    run_ranks(size, [](int rank) {
      if (rank == 1) testing::refuse_system_call(SYS_process_vm_readv, EPERM);
      auto group = init_process_group();
      testing::check_pairs<float, Buffer>(group);
    });
  }
}

TEST(WithoutReadingEachOthersMemory, ADeathInTheMidstOfMessagesIsNoticed) { expect_death_in_midst_is_noticed(true); }

TEST(ManyRanks, ExchangeAllAtOnce) {
  run_ranks(16, [](int) {
    auto group = init_process_group();
    for (const std::size_t count : {1, 5'000, 100'001}) {
      testing::check_one_after_the_other<float, Buffer>(group, testing::Where::plain, count);
      testing::check_all_at_once<float, Buffer>(group, testing::Where::plain, count);
    }
  });
}

TEST(ManyMessages, OfTwoRanksInTurnKeepTheirOrder) {
  run_ranks(2, [](int) {
    auto group = init_process_group();
    testing::check_in_turn(group, 10'000);
  });
}

TEST(ManyMessages, InOneCallArriveInTheirOrder) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    std::vector<std::int32_t> out(65'000), in(65'000, -1);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int32_t>(i) * 2 + rank;
    group
        .coalesce([&] {
          for (std::size_t i = 0; i < out.size() / 2; ++i) {
            static_cast<void>(group.send_async(ConstMemoryRange(&out[i], 1), 1 - rank));
            static_cast<void>(group.receive_async(MemoryRange(&in[i], 1), 1 - rank));
          }
        })
        .wait();
    for (std::size_t i = 0; i < out.size() / 2; ++i) ASSERT_EQ(in[i], static_cast<std::int32_t>(i) * 2 + 1 - rank);
  });
}

TEST(Tags, TellMessagesApartInWhateverOrderTheyAreWanted) {
  run_ranks(3, [](int) {
    auto group = init_process_group();
    testing::check_tags(group);
  });
}

TEST(Tags, DoNotReachTheMessagesThatACollectiveIsMadeOf) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    std::vector<float> own(3, 5), all(4, static_cast<float>(rank));
    Work first, second;
    if (rank == 0) {
      first = group.send_async(own, 1);
      second = group.send_async(own, 1, {.tag = 1});
    } else {
      own.assign(3, 0);
      group.receive(own, 0, {.tag = 1});
      EXPECT_THAT(own, ElementsAre(5, 5, 5));
    }
    group.all_gather_v(ConstMemoryRange(all.data() + 3 * rank, rank == 0 ? 3 : 1), all, {3, 1});
    EXPECT_THAT(all, ElementsAre(0, 0, 0, 1));
    if (rank == 1) {
      own.assign(3, 0);
      group.receive(own, 0);
      EXPECT_THAT(own, ElementsAre(5, 5, 5));
    }
    first.wait();
    second.wait();
  });
}

TEST(Tags, AKeptMessageOfAnotherCountIsAMismatch) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    std::vector<float> values(4);
    if (rank == 0) {
      group.send(values, 1, {.tag = 1});
      group.send(values, 1, {.tag = 2});
      thrown_by<RankFailure>([&] { group.receive(values, 1); });
      return;
    }
    group.receive(values, 0, {.tag = 2});
    values.resize(3);
    const auto error = thrown_by<MismatchError>([&] { group.receive(values, 0, {.tag = 1}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("rank 0 called send of 4 float32 to rank 1, tag 1, rank 1 called receive of "
                                         "3 float32 from rank 0, tag 1"));
  });
}

// 64 MiB are kept, and no more.
TEST(Tags, AMessageThatIsTooLargeToKeepHoldsUpThoseBehindIt) {
  Shared<std::atomic<bool>> are_sent;
  run_ranks(2, [&](int rank) {
    auto group = init_process_group();
    std::vector<float> small(1), large(17u << 20);
    if (rank == 0) {
      Work first = group.send_async(large, 1, {.tag = 1});
      Work second = group.send_async(small, 1, {.tag = 2});
      *are_sent = true;
      thrown_by<RankFailure>([&] { first.wait(); });
      return;
    }
    wait_until([&] { return are_sent->load(); });
    const auto error =
        thrown_by<TimeoutError>([&] { group.receive(small, 0, {.timeout = milliseconds(200), .tag = 2}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("rank 0 did not come to receive of 1 float32 from rank 0, tag 2, message 1, "
                                         "within 200 ms"));
  });
}

TEST(FromAny, TakesWhoeverSendsFirst) {
  for (const int size : {2, 4}) {
    run_ranks(size, [](int) {
      auto group = init_process_group();
      testing::check_receive_from_any(group);
    });
  }
}

TEST(FromAny, GoesOnWithoutThoseWhoHaveLeftAndFailsWhenAllHave) {
  Shared<std::atomic<bool>> has_left;
  run_ranks(3, [&](int rank) {
    std::optional<ProcessGroup> group = init_process_group();
    std::vector<float> values(1, static_cast<float>(rank));
    if (rank == 2) {
      group.reset();
      *has_left = true;
      return;
    }
    wait_until([&] { return has_left->load(); });
    if (rank == 1) return group->send(values, 0);
    EXPECT_EQ(group->receive_from_any(values), 1);
    EXPECT_EQ(values[0], 1);
    const auto error = thrown_by<RankFailure>([&] { group->receive_from_any(values); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("has left the group"));
  });
}

TEST(FromAny, FailsOnceARankHasDied) {
  Shared<std::atomic<bool>> waits, done;
  RankProcesses ranks(3, [&](int rank) {
    auto group = init_process_group();
    group.barrier();
    if (rank != 0) return wait_until([&] { return done->load(); });
    std::vector<float> values(1);
    *waits = true;
    const auto error = thrown_by<RankFailure>([&] { group.receive_from_any(values); });
    *done = true;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(2));
  });
  wait_until([&] { return waits->load(); });
  ranks.kill(2);
  ranks.expect_killed(2);
  ranks.expect_success(0);
  ranks.expect_success(1);
}

TEST(FromAny, ThatNobodySendsNamesAllWhoCould) {
  Shared<std::atomic<bool>> done;
  run_ranks(3, [&](int rank) {
    auto group = init_process_group();
    if (rank != 0) return wait_until([&] { return done->load(); });
    std::vector<float> values(1);
    const auto error =
        thrown_by<TimeoutError>([&] { group.receive_from_any(values, {.timeout = milliseconds(100), .tag = 4}); });
    *done = true;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1, 2));
    EXPECT_THAT(error->what(), HasSubstr("receive of 1 float32 from any rank, tag 4"));
  });
}

TEST(Coalesced, CollectivesComeFirstInTheirOrder) {
  run_ranks(3, [](int rank) {
    auto group = init_process_group();
    std::vector<std::int64_t> sum{1}, root{rank == 2 ? 70 : 0}, got{-1};
    const int next = (rank + 1) % 3;
    const int last = (rank + 2) % 3;
    group
        .coalesce([&] {
          static_cast<void>(group.send_async(sum, next));  // what it has become by then
          static_cast<void>(group.all_reduce_async(sum));
          if (rank == 1) static_cast<void>(group.receive_async(got, last));
          static_cast<void>(group.broadcast_async(root, 2));
          if (rank != 1) static_cast<void>(group.receive_async(got, last));
        })
        .wait();
    EXPECT_EQ(sum[0], 3);
    EXPECT_EQ(root[0], 70);
    EXPECT_EQ(got[0], 3);
  });
}

TEST(Coalesced, AmongOneIsDoneAtOnce) {
  auto group = init_process_group();
  std::vector<float> values{1, 2};
  std::vector<float> copy(2);
  group
      .coalesce([&] {
        static_cast<void>(group.all_reduce_async(values));
        static_cast<void>(group.all_gather_async(values, copy));
      })
      .wait();
  EXPECT_THAT(copy, ElementsAre(1, 2));
  group.coalesce([&] {}).wait();
}

TEST(Messages, NeedNoOtherRank) {
  Shared<std::atomic<int>> done;
  run_ranks(4, [&](int rank) {
    auto group = init_process_group();
    std::vector<float> values(100'000, static_cast<float>(rank));
    if (rank < 2) {
      for (int i = 0; i < 10; ++i) rank == 0 ? group.send(values, 1) : group.receive(values, 0);
      EXPECT_EQ(values.back(), 0);
      ++*done;
      return;
    }
    wait_until([&] { return done->load() == 2; });
  });
}

void expect_useless(ProcessGroup& group, const std::string& first_reason) {
  const auto again = thrown_by<AbortedError>([&] { group.barrier(); });
  ASSERT_TRUE(again);
  EXPECT_THAT(again->what(), HasSubstr(first_reason));
}

template <class Send, class Receive>
void expect_mismatch(const std::string& difference, const Send& sent, const Receive& received) {
  run_ranks(3, [&](int rank) {
    auto group = init_process_group();
    std::vector<float> before(3);
    if (rank == 2) group.send(before, 0);
    if (rank == 0) group.receive(before, 2);
    if (rank == 1) return;
    const auto error = thrown_by<MismatchError>([&] {
      auto values = sent;
      auto other = received;
      rank == 2 ? group.send(values, 0) : group.receive(other, 2);
    });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr(difference), HasSubstr("the same type and count")));
    expect_useless(group, difference);
  });
}

TEST(Mismatch, OfCountIsToldToBothSides) {
  const std::string want =
      "rank 0 called receive of 99 float32 from rank 2, rank 2 called send of 100 float32 to rank 0 (message 2)";
  expect_mismatch(want, std::vector<float>(100), std::vector<float>(99));
}

TEST(Mismatch, OfALargeMessageIsToldToBothSides) {
  expect_mismatch("rank 0 called receive of 1 float32 from rank 2, rank 2 called send of 1000000 float32 to rank 0",
                  std::vector<float>(1'000'000), std::vector<float>(1));
}

TEST(Mismatch, OfTypeIsToldToBothSides) {
  expect_mismatch("rank 0 called receive of 8 int32 from rank 2, rank 2 called send of 8 float32 to rank 0",
                  std::vector<float>(8), std::vector<std::int32_t>(8));
}

TEST(Mismatch, InOneOfSeveralCallsFailsAll) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    std::vector<float> small(10), large(1'000'000);
    std::vector<Work> works;
    const auto error = thrown_by<MismatchError>([&] {
      group
          .coalesce([&] {
            works.push_back(group.send_async(ConstMemoryRange(large.data(), 500'000), 1 - rank));
            works.push_back(group.receive_async(MemoryRange(large.data() + 500'000, 500'000), 1 - rank));
            works.push_back(group.send_async(small, 1 - rank));
            works.push_back(group.receive_async(MemoryRange(large.data(), rank == 0 ? 11 : 10), 1 - rank));
          })
          .wait();
    });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("rank 0 called receive of 11 float32 from rank 1, rank 1 called send of 10 "
                                         "float32 to rank 0 (message 2)"));
    for (Work& work : works) thrown_by<MismatchError>([&] { work.wait(); });
  });
}

// What becomes of a call whose peer fails before, or in the midst of it.
enum class Size : std::size_t { small = 1, large = 30'000'000 };

void call(ProcessGroup& group, bool is_send, Size size, CollectiveOptions options = {}) {
  std::vector<float> values(static_cast<std::size_t>(size));
  is_send ? group.send(values, 1, options) : group.receive(values, 1, options);
}

template <class Check>
void for_each_kind(const Check& check) {
  for (const bool is_send : {true, false}) {
    for (const Size size : {Size::small, Size::large}) {
      SCOPED_TRACE(std::string(is_send ? "send" : "receive") + " of " + std::to_string(static_cast<std::size_t>(size)));
      check(is_send, size);
    }
  }
}

TEST(Death, OfThePeerIsNoticedAtOnceAndThatOfAThirdRankIsNot) {
  for_each_kind([](bool is_send, Size size) {
    Shared<std::atomic<int>> steps;
    RankProcesses ranks(4, [&](int rank) {
      auto group = init_process_group();
      if (rank == 3) ::raise(SIGKILL);
      if (rank == 2) {  // while rank 3 is dead
        wait_until([&] { return steps->load() == 1; });
        std::vector<float> values(50'000, 2);
        for (int i = 0; i < 10; ++i) group.send(values, 1);
        return;
      }
      if (rank == 1) {
        wait_until([&] { return steps->load() == 1; });
        std::vector<float> values(50'000);
        for (int i = 0; i < 10; ++i) group.receive(values, 2);
        EXPECT_EQ(values.back(), 2);
        ::raise(SIGKILL);
      }
      const auto error = thrown_by<RankFailure>([&] { call(group, is_send, size); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(1));
      EXPECT_THAT(error->what(), AllOf(HasSubstr("rank 1 (pid "), HasSubstr(") ended; this rank needed it in "),
                                       HasSubstr(is_send ? "to rank 1, message 1" : "from rank 1, message 1")));
      expect_useless(group, "rank 1 (pid ");
    });
    ranks.expect_killed(3);
    *steps = 1;
    ranks.expect_success(2);
    ranks.expect_killed(1);
    ranks.expect_success(0);
  });
}

TEST(Death, InTheMidstOfMessagesIsNoticed) { expect_death_in_midst_is_noticed(false); }

TEST(Leaving, OfThePeerIsTold) {
  for_each_kind([](bool is_send, Size size) {
    run_ranks(2, [&](int rank) {
      std::optional<ProcessGroup> group = init_process_group();
      if (rank == 1) return group.reset();
      const auto error = thrown_by<RankFailure>([&] { call(*group, is_send, size); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("has left the group"));
    });
  });
}

TEST(Abort, OfThePeerAndOfThisRankEndsACall) {
  for_each_kind([](bool is_send, Size size) {
    Shared<std::atomic<bool>> done;
    run_ranks(3, [&](int rank) {
      auto group = init_process_group();
      if (rank == 2) return wait_until([&] { return done->load(); });
      if (rank == 0) {
        const auto error = thrown_by<RankFailure>([&] { call(group, is_send, size); });
        *done = true;
        ASSERT_TRUE(error);
        EXPECT_THAT(error->what(), AllOf(HasSubstr("rank 1 (pid "), HasSubstr(") aborted the group")));
        return;
      }
      std::vector<float> values(1);
      std::thread other([&] { group.abort("a key was pressed"); });
      const auto error = thrown_by<AbortedError>([&] { group.receive(values, 2); });
      other.join();
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("a key was pressed"));
      wait_until([&] { return done->load(); });
    });
  });
}

TEST(Timeout, NamesThePeerAndItsLastCollective) {
  for_each_kind([](bool is_send, Size size) {
    Shared<std::atomic<bool>> done;
    run_ranks(3, [&](int rank) {
      auto group = init_process_group();
      group.barrier();
      if (rank != 0) return wait_until([&] { return done->load(); });
      const auto error = thrown_by<TimeoutError>([&] { call(group, is_send, size, {.timeout = milliseconds(100)}); });
      *done = true;
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(1));
      EXPECT_THAT(error->what(),
                  AllOf(HasSubstr("rank 1 did not come to " + std::string(is_send ? "send" : "receive")),
                        HasSubstr("message 1, within 100 ms"), HasSubstr("'s last collective is barrier, call 1")));
      expect_useless(group, "rank 1 did not come to");
    });
  });
}

TEST(Timeout, OfSeveralCallsNamesAllThatDidNotCome) {
  Shared<std::array<std::atomic<pid_t>, 4>> senders;
  Shared<std::atomic<bool>> done;
  run_ranks(4, [&](int rank) {
    auto group = init_process_group();
    std::vector<float> values(8), large(3'000'000);
    if (rank >= 2) {
      (*senders)[static_cast<std::size_t>(rank)] = ::getpid();  // from here on its main thread sleeps in send() only
      group.send(rank == 2 ? values : large, 0);
    }
    if (rank != 0) return wait_until([&] { return done->load(); });
    for (const std::size_t sender : {2, 3}) {  // so the messages are there before the time runs
      wait_until([&] { return (*senders)[sender] != 0 && main_thread_sleeps((*senders)[sender]); });
    }
    const auto error = thrown_by<TimeoutError>([&] {
      group
          .coalesce(
              [&] {
                static_cast<void>(group.receive_async(large, 3));
                static_cast<void>(group.send_async(values, 2));
                static_cast<void>(group.receive_async(values, 2));
                static_cast<void>(group.send_async(values, 1));
              },
              {.timeout = milliseconds(5'000)})
          .wait();
    });
    *done = true;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1, 2));
    EXPECT_THAT(error->what(), AllOf(HasSubstr("ranks 1 and 2 did not come to what this rank has called with them, "
                                               "beginning with send of 8 float32 to rank 2, message 1, within 5000 ms"),
                                     HasSubstr("; rank 1 (pid "), HasSubstr("; rank 2 (pid ")));
  });
}

TEST(Timeout, OfTwoThatBothSendFirst) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    std::vector<float> values(1);
    const auto error =
        thrown_by<Error>([&] { group.send(values, 1 - rank, {.timeout = milliseconds(rank == 0 ? 2'000 : 60'000)}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr(rank == 0 ? "in one coalesce()" : "gave up on the group"));
  });
}

TEST(Memory, ThatTheReceiverHasLetGoOfIsReadAllTheSame) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    constexpr std::size_t kCount = 300'000;
    std::optional<RegisteredMemory> memory = group.allocate(kCount * sizeof(double));
    if (rank == 1) memory.reset();
    std::vector<double> plain(kCount);
    if (rank == 0) {
      auto* const values = static_cast<double*>(memory->data());
      for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<double>(i);
      group.send(MemoryRange(values, kCount), 1);
    } else {
      group.receive(plain, 0);
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(plain[i], static_cast<double>(i));
    }
  });
}

TEST(WrongUse, IsRefusedAndTheGroupGoesOn) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    std::vector<float> values(4);
    thrown_by<InvalidArgument>([&] { group.send(values, rank); });
    thrown_by<InvalidArgument>([&] { group.receive(values, 2); });
    thrown_by<InvalidArgument>([&] { static_cast<void>(group.coalesce([&] { group.send(values, 1 - rank); })); });
    rank == 0 ? group.send(values, 1) : group.receive(values, 0);
  });
}

}  // namespace
}  // namespace ddp
