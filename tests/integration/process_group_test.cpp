// Collectives among real processes, against a plain computation; and what one process can check alone.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "tests/integration/collective_values.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp {
namespace {

using testing::Buffer;
using testing::element;
using testing::expect_bits;
using testing::RanksByHost;
using testing::reduced;
using testing::run_ranks;
using testing::thrown_by;

const std::vector<std::size_t> kCounts{0, 1, 3, 1'000'003};  // the last takes several blocks of staging
constexpr std::size_t kPerRankMax = 300'007;                 // where every rank has as many; several blocks, too

enum class Where { plain, registered, registered_on_rank_0 };

const char* name_of(Where where) {
  switch (where) {
    case Where::plain: return "plain";
    case Where::registered: return "registered";
    case Where::registered_on_rank_0: return "registered on rank 0 only";
  }
  return "";
}

template <class T>
Buffer<T> buffer(ProcessGroup& group, Where where, std::size_t count) {
  const bool is_registered = where == Where::registered || (where == Where::registered_on_rank_0 && group.rank() == 0);
  return Buffer<T>(group, where != Where::plain, is_registered, count);
}

RanksByHost one_host(const ProcessGroup& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {ranks};
}

template <class T>
void check_in_place_collectives(ProcessGroup& group, Where where, std::size_t count) {
  const auto ranks = one_host(group);
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
    auto inout = buffer<T>(group, where, count);
    group.all_reduce(inout.range(), op);
    expect_bits("all_reduce", inout.data(), count, [&](std::size_t i) { return reduced<T>(op, ranks, i); });
  }
  for (const int root : {0, group.size() - 1}) {
    auto inout = buffer<T>(group, where, count);
    group.broadcast(inout.range(), root);
    expect_bits("broadcast", inout.data(), count, [&](std::size_t i) { return element<T>(root, i); });
  }
}

// With `count` elements of every rank.
template <class T>
void check_gathering_collectives(ProcessGroup& group, Where where, std::size_t count) {
  const auto ranks = one_host(group);
  const std::size_t all = count * static_cast<std::size_t>(group.size());
  const std::size_t own = count * static_cast<std::size_t>(group.rank());
  const auto gathered = [&](std::size_t i) { return element<T>(static_cast<int>(i / count), i % count); };
  auto one = buffer<T>(group, where, count);
  auto output = buffer<T>(group, where, all);
  group.all_gather(one.range(), output.range());
  expect_bits("all_gather", output.data(), all, gathered);

  auto in_place = buffer<T>(group, where, all);
  std::copy_n(one.data(), count, in_place.data() + own);
  group.all_gather(in_place.part(own, count), in_place.range());
  expect_bits("all_gather in place", in_place.data(), all, gathered);

  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
    auto input = buffer<T>(group, where, all);
    group.reduce_scatter(input.range(), one.range(), op);
    expect_bits("reduce_scatter", one.data(), count, [&](std::size_t i) { return reduced<T>(op, ranks, own + i); });
  }
}

class Collectives : public ::testing::TestWithParam<int> {};

template <class T>
void check_all_sizes(int size) {
  run_ranks(size, [](int) {
    auto group = init_process_group();
    for (const Where where : {Where::plain, Where::registered, Where::registered_on_rank_0}) {
      for (const std::size_t count : kCounts) {
        SCOPED_TRACE(std::to_string(count) + " elements, " + name_of(where));
        check_in_place_collectives<T>(group, where, count);
        check_gathering_collectives<T>(group, where, std::min(count, kPerRankMax));
      }
    }
  });
}

TEST_P(Collectives, Float32_EqualAPlainComputationBitByBit) { check_all_sizes<float>(GetParam()); }
TEST_P(Collectives, Float64_EqualAPlainComputationBitByBit) { check_all_sizes<double>(GetParam()); }
TEST_P(Collectives, Int64_EqualAPlainComputationBitByBit) { check_all_sizes<std::int64_t>(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(1, 2, 3, 4));

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
  EXPECT_TRUE(refused([&] { group.reduce_scatter(values, sums, static_cast<ReduceOp>(2)); }));
  EXPECT_TRUE(refused([&] { group.broadcast(values, 1); }));
  EXPECT_TRUE(refused([&] { group.broadcast(values, -1); }));
  EXPECT_TRUE(refused([&] { group.all_gather(MemoryRange(values.data(), 4), MemoryRange(values.data() + 2, 4)); }));
  EXPECT_TRUE(refused([&] { group.all_gather(values, reals); }));
  EXPECT_TRUE(refused([&] { group.all_gather(MemoryRange(values.data(), 3), values); }));
  EXPECT_TRUE(refused([&] { group.reduce_scatter(values, values); }));
  EXPECT_TRUE(refused([&] { group.barrier({.timeout = std::chrono::milliseconds(-1)}); }));
  EXPECT_TRUE(refused([] { ProcessGroup().barrier(); }));
  EXPECT_TRUE(refused([] { init_process_group({.backend = "nccl"}); }));
  EXPECT_TRUE(refused([] { init_process_group({.timeout = std::chrono::milliseconds(0)}); }));
  group.barrier({.timeout = std::chrono::milliseconds::max()});
}

}  // namespace
}  // namespace ddp
