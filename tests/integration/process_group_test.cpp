// Collectives among real processes, against a plain computation; and what one process can check alone.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/integration/collective_checks.hpp"
#include "tests/integration/collective_values.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/sanitized.hpp"
#include "tests/seccomp_filter.hpp"

namespace ddp {
namespace {

using testing::Buffer;
using testing::run_ranks;
using testing::thrown_by;

class Collectives : public ::testing::TestWithParam<int> {};

template <class T>
void check_all_sizes(int size) {
  run_ranks(size, [](int) {
    auto group = init_process_group();
    testing::check_collectives<T, Buffer>(group);
  });
}

TEST_P(Collectives, Float32_EqualAPlainComputationBitByBit) { check_all_sizes<float>(GetParam()); }
TEST_P(Collectives, Float64_EqualAPlainComputationBitByBit) { check_all_sizes<double>(GetParam()); }
TEST_P(Collectives, Int64_EqualAPlainComputationBitByBit) { check_all_sizes<std::int64_t>(GetParam()); }
TEST_P(Collectives, Float16_EqualAPlainComputationBitByBit) { check_all_sizes<tensor::Float16>(GetParam()); }
TEST_P(Collectives, Bfloat16_EqualAPlainComputationBitByBit) { check_all_sizes<tensor::Bfloat16>(GetParam()); }
TEST_P(Collectives, Int32_EqualAPlainComputationBitByBit) { check_all_sizes<std::int32_t>(GetParam()); }
TEST_P(Collectives, Uint8_EqualAPlainComputationBitByBit) { check_all_sizes<std::uint8_t>(GetParam()); }

// Of as many bytes as uint8, which takes all blocks.
constexpr std::size_t kSomeCount = 70'001;
template <class T>
void check_some_sizes(int size) {
  run_ranks(size, [](int) {
    auto group = init_process_group();
    testing::check_collectives<T, Buffer>(group, kSomeCount);
  });
}

TEST_P(Collectives, Int8_EqualAPlainComputationBitByBit) { check_some_sizes<std::int8_t>(GetParam()); }
TEST_P(Collectives, Bool_EqualAPlainComputationBitByBit) { check_some_sizes<testing::Boolean>(GetParam()); }
TEST_P(Collectives, Float8E4m3fn_EqualAPlainComputationBitByBit) {
  check_some_sizes<testing::Float8E4m3fn>(GetParam());
}
TEST_P(Collectives, Float8E5m2_EqualAPlainComputationBitByBit) { check_some_sizes<testing::Float8E5m2>(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives,
                         ::testing::ValuesIn(test::kIsSanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 4}));

TEST(GroupOfOne, NeedsNoStoreAndNoPartner) {
  auto group = init_process_group();
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.size(), 1);
  EXPECT_GT(group.round().term, 0u);
  std::vector<float> values{1, 2, 3};
  group.all_reduce(values, ReduceOp::average);
  group.broadcast(values, 0);
  EXPECT_THAT(values, ::testing::ElementsAre(1, 2, 3));
  const auto memory = group.allocate(100);
  EXPECT_EQ(static_cast<char*>(memory.data())[99], 0);
  auto work = group.all_reduce_async(values);
  work.wait();
  EXPECT_TRUE(work.is_completed());
}

TEST(Arguments, AreCheckedBeforeAnythingStarts) {
  auto group = init_process_group();
  std::vector<float> values(8);
  std::vector<double> reals(8);
  MemoryRange on_gpu = values;
  on_gpu.device = {Device::Kind::cuda, 0};
  const MemoryRange null(static_cast<float*>(nullptr), 1);
  const MemoryRange crooked(reinterpret_cast<char*>(values.data()) + 1, 1, DataType::float32);
  const MemoryRange huge(values.data(), SIZE_MAX / 4);
  const auto refused = [](const auto& call) { return thrown_by<InvalidArgument>(call).has_value(); };
  EXPECT_TRUE(refused([&] { group.all_reduce(on_gpu); }));
  EXPECT_TRUE(refused([&] { group.all_reduce(null); }));
  EXPECT_TRUE(refused([&] { group.all_reduce(crooked); }));
  EXPECT_TRUE(refused([&] { group.all_reduce(huge); }));
  EXPECT_TRUE(refused([&] { group.all_reduce(values, static_cast<ReduceOp>(9)); }));
  std::vector<float> sums(8);
  EXPECT_TRUE(refused([&] { group.reduce_scatter(values, sums, static_cast<ReduceOp>(6)); }));
  EXPECT_TRUE(refused([&] { group.broadcast(values, 1); }));
  EXPECT_TRUE(refused([&] { group.broadcast(values, -1); }));
  EXPECT_TRUE(refused([&] { group.all_gather(MemoryRange(values.data(), 4), MemoryRange(values.data() + 2, 4)); }));
  EXPECT_TRUE(refused([&] { group.all_gather(values, reals); }));
  EXPECT_TRUE(refused([&] { group.all_gather(MemoryRange(values.data(), 3), values); }));
  EXPECT_TRUE(refused([&] { group.reduce_scatter(MemoryRange(values.data(), 4), MemoryRange(values.data() + 2, 4)); }));
  EXPECT_TRUE(refused([&] { group.barrier({.timeout = std::chrono::milliseconds(-1)}); }));
  EXPECT_TRUE(refused([] { ProcessGroup().barrier(); }));
  EXPECT_TRUE(refused([] { init_process_group({.backend = "gloo"}); }));
  InitOptions no_such_device;
  no_such_device.backend = "nccl";
  no_such_device.device = 9999;
  EXPECT_TRUE(thrown_by<Error>([&] { init_process_group(no_such_device); }).has_value()) << "nor a build without nccl";
  EXPECT_TRUE(refused([] { init_process_group({.timeout = std::chrono::milliseconds(0)}); }));
  group.barrier({.timeout = std::chrono::milliseconds::max()});
}

// Large calls take several ways, each of them at first and the fastest from then on; small calls in between use what
// they do.
TEST(PlainMemory, HasTheSameBitsWhicheverWayItGoes) {
  run_ranks(4, [](int rank) {
    auto group = init_process_group();
    const auto values = [](int of, std::size_t call, std::size_t i) {
      return static_cast<std::int64_t>(1'000'003 * (static_cast<std::size_t>(of) + 1) + call * 7'919 + i);
    };
    for (const std::size_t count : {8'192, 70'001, 200'001, 262'144, 300'000}) {
      for (std::size_t call = 0; call < 20; ++call) {
        std::vector<std::int64_t> sums(count), small(20, rank), gathered(4 * (count / 4));
        for (std::size_t i = 0; i < count; ++i) sums[i] = values(rank, call, i);
        group.all_gather({sums.data(), count / 4}, gathered);
        group.all_reduce(sums);
        group.all_reduce(small);
        ASSERT_EQ(small, std::vector<std::int64_t>(20, 0 + 1 + 2 + 3));
        for (std::size_t i = 0; i < count; ++i) {
          const auto expected = values(0, call, i) + values(1, call, i) + values(2, call, i) + values(3, call, i);
          ASSERT_EQ(sums[i], expected) << i << " of " << count << " in call " << call;
        }
        for (std::size_t i = 0; i < gathered.size(); ++i) {
          const int from = static_cast<int>(i / (count / 4));
          ASSERT_EQ(gathered[i], values(from, call, i % (count / 4))) << i << " of " << count << " in call " << call;
        }
      }
    }
  });
}

TEST(PlainMemory, IsCopiedWhereTheKernelRefusesToReadItFromAnother) {
  run_ranks(3, [](int) {
    testing::refuse_system_call(SYS_process_vm_readv, EPERM);
    auto group = init_process_group();
    testing::check_collectives<float, Buffer>(group);
  });
}

TEST(PlainMemory, IsCopiedFromTheCallOnInWhichOneRankSeesThatItCanNotBeRead) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    std::vector<float> values(1'000'000, 1);
    float expected = 1;
    for (int call = 0; call < 10; ++call) {  // the fifth and the sixth are the first ones to read
      if (call == 4 && rank == 0) testing::refuse_system_call(SYS_process_vm_readv, EPERM);
      group.all_reduce(values);
      expected *= 2;
      EXPECT_EQ(values.front(), expected);
      EXPECT_EQ(values.back(), expected);
    }
  });
}

// As before Linux 5.3 and in some sandboxes.
TEST(WithoutPidfds, RanksMeetAndTheEndOfOneIsNoticed) {
  testing::Shared<std::atomic<int>> noticed;
  run_ranks(3, [&](int rank) {
    testing::refuse_system_call(SYS_pidfd_open, ENOSYS);
    auto group = init_process_group({.timeout = testing::kNotForEver});
    testing::check_collectives<float, Buffer>(group);
    if (rank == 1) {
      if (::fork() != 0) ::_exit(0);
      // A child that lives on does not hide the end of its parent.
      testing::wait_until([&] { return *noticed == 2; });
      ::_exit(0);
    }
    std::vector<float> values(4);
    const auto error = thrown_by<RankFailure>([&] { group.all_reduce(values); });
    ++*noticed;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ::testing::ElementsAre(1));
  });
}

TEST(Calls, OfAnotherTypeOrOperatorAreAMismatch) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    std::vector<std::uint16_t> values(4);
    const auto error = thrown_by<MismatchError>([&] {
      group.all_reduce({values.data(), 4, rank == 0 ? DataType::float16 : DataType::bfloat16});
    });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                ::testing::HasSubstr("rank 0 called all_reduce of 4 float16 (sum), rank 1 called all_reduce "
                                     "of 4 bfloat16 (sum)"));
  });
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    std::vector<std::int32_t> values(4);
    const auto error =
        thrown_by<MismatchError>([&] { group.all_reduce(values, rank == 0 ? ReduceOp::min : ReduceOp::max); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), ::testing::HasSubstr("int32 (min), rank 1 called all_reduce of 4 int32 (max)"));
  });
  run_ranks(2, [](int rank) {
    auto group = init_process_group();
    std::vector<float> values(4, 1);
    const auto error = thrown_by<MismatchError>(
        [&] { rank == 0 ? group.all_reduce(values) : group.all_reduce(values, ReduceOp::premul_sum, {.factor = 2}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                ::testing::HasSubstr("float32 (sum), rank 1 called all_reduce of 4 float32 (premul_sum)"));
    EXPECT_THAT(values, ::testing::Each(1)) << "not multiplied";
  });
}

// Nothing of any result is written.
void expect_mismatch(const std::function<void(ProcessGroup&, std::vector<float>& output)>& call,
                     const std::string& what) {
  run_ranks(3, [&](int) {
    auto group = init_process_group({.timeout = testing::kNotForEver});
    std::vector<float> output(6, 7.0f);
    const auto error = thrown_by<MismatchError>([&] { call(group, output); });
    ASSERT_TRUE(error) << what;
    EXPECT_THAT(error->what(), ::testing::HasSubstr(what));
    EXPECT_THAT(output, ::testing::Each(7.0f));
    EXPECT_TRUE(thrown_by<AbortedError>([&] { group.barrier(); }));
  });
}

TEST(Counts, ThatDifferAreAMismatchOnAllRanksBeforeAnyResultIsWritten) {
  using Counts = std::vector<std::size_t>;
  const std::vector<float> six(6);
  expect_mismatch(
      [&](ProcessGroup& group, std::vector<float>& output) {
        const bool is_other = group.rank() == 1;
        const Counts counts = is_other ? Counts{1, 2, 3} : Counts{2, 2, 2};
        group.all_gather_v({six.data(), 2}, output, counts);
      },
      "rank 0 called all_gather_v of 6 float32 in all, the ranks' counts have the checksum ");
  expect_mismatch(
      [&](ProcessGroup& group, std::vector<float>& output) {
        const bool is_other = group.rank() == 2;
        group.reduce_scatter_v({six.data(), is_other ? 4u : 3u}, {output.data(), 1},
                               is_other ? Counts{2, 1, 1} : Counts{1, 1, 1});
      },
      "rank 0 called reduce_scatter_v of 3 float32 (sum) in all");
  expect_mismatch(
      [&](ProcessGroup& group, std::vector<float>& output) {
        const Counts ones{1, 1, 1};
        const bool is_other = group.rank() == 2;
        group.all_to_all_v({six.data(), is_other ? 4u : 3u}, is_other ? Counts{2, 1, 1} : ones, {output.data(), 3},
                           ones);
      },
      "in all_to_all_v rank 2 gives rank 0 2 float32, and that rank expects 1 float32");
}

TEST(Calls, OfUnequalAndEqualCountsAreAMismatch) {
  run_ranks(2, [](int rank) {
    auto group = init_process_group({.timeout = testing::kNotForEver});
    const std::vector<float> two(2);
    std::vector<float> output(2);
    const auto error = thrown_by<MismatchError>([&] {
      rank == 0 ? group.all_to_all_v(two, {1, 1}, output, {1, 1}) : group.all_to_all(two, output);
    });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), ::testing::HasSubstr("rank 0 called all_to_all_v of float32, rank 1 called all_to_all"));
  });
}

}  // namespace
}  // namespace ddp
