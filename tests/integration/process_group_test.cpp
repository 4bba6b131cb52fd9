// Collectives among real processes, against a plain computation; and what one process can check alone.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp {
namespace {

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

// What element i of a rank starts as: sums of these depend on their order, and those of integers overflow.
template <class T>
T element(int rank, std::size_t i) {
  const std::uint64_t mixed =
      (static_cast<std::uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xbf58476d1ce4e5b9u;
  if constexpr (std::is_same_v<T, std::int64_t>) {
    return static_cast<std::int64_t>(mixed * mixed);
  } else {
    return static_cast<T>(static_cast<double>(mixed >> 40) / 3.0 - 1e6) * (rank % 2 == 0 ? T{1} : T{-1});
  }
}

template <class T>
T reduced(ReduceOp op, int size, std::size_t i) {
  if constexpr (std::is_same_v<T, std::int64_t>) {
    std::uint64_t sum = 0;
    for (int rank = 0; rank < size; ++rank) sum += static_cast<std::uint64_t>(element<T>(rank, i));
    return op == ReduceOp::sum ? static_cast<T>(sum) : static_cast<T>(sum) / size;
  } else {
    T sum = element<T>(0, i);
    for (int rank = 1; rank < size; ++rank) sum += element<T>(rank, i);
    return op == ReduceOp::sum ? sum : sum / static_cast<T>(size);
  }
}

// Memory of `count` elements, filled with a rank's elements.
template <class T>
class Buffer {
 public:
  Buffer(ProcessGroup& group, Where where, std::size_t count) : plain_(count), count_(count) {
    if (where != Where::plain) registered_ = group.allocate(count * sizeof(T) + 1);
    const bool shared = where == Where::registered || (where == Where::registered_on_rank_0 && group.rank() == 0);
    data_ = shared ? static_cast<T*>(registered_.data()) : plain_.data();
    for (std::size_t i = 0; i < count; ++i) data_[i] = element<T>(group.rank(), i);
  }

  MemoryRange range() const { return {data_, count_}; }
  MemoryRange part(std::size_t begin, std::size_t count) const { return {data_ + begin, count}; }
  const T* data() const { return data_; }

 private:
  std::vector<T> plain_;
  RegisteredMemory registered_;
  std::size_t count_;
  T* data_;
};

// Bit by bit, so that no tolerance hides a difference between ranks.
template <class T, class Want>
void expect_bits(const T* have, std::size_t count, const Want& want) {
  for (std::size_t i = 0; i < count; ++i) {
    const T wanted = want(i);
    ASSERT_EQ(std::memcmp(&have[i], &wanted, sizeof(T)), 0) << "element " << i << ": " << have[i] << ", not " << wanted;
  }
}

template <class T>
void check_in_place_collectives(ProcessGroup& group, Where where, std::size_t count) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
    Buffer<T> inout(group, where, count);
    group.all_reduce(inout.range(), op);
    expect_bits(inout.data(), count, [&](std::size_t i) { return reduced<T>(op, group.size(), i); });
  }
  for (const int root : {0, group.size() - 1}) {
    Buffer<T> inout(group, where, count);
    group.broadcast(inout.range(), root);
    expect_bits(inout.data(), count, [&](std::size_t i) { return element<T>(root, i); });
  }
}

// With `count` elements of every rank.
template <class T>
void check_gathering_collectives(ProcessGroup& group, Where where, std::size_t count) {
  const std::size_t all = count * static_cast<std::size_t>(group.size());
  const std::size_t own = count * static_cast<std::size_t>(group.rank());
  const auto gathered = [&](std::size_t i) { return element<T>(static_cast<int>(i / count), i % count); };
  Buffer<T> one(group, where, count);
  Buffer<T> output(group, where, all);
  group.all_gather(one.range(), output.range());
  expect_bits(output.data(), all, gathered);

  Buffer<T> in_place(group, where, all);
  std::copy_n(one.data(), count, static_cast<T*>(in_place.range().data) + own);
  group.all_gather(in_place.part(own, count), in_place.range());
  expect_bits(in_place.data(), all, gathered);

  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
    Buffer<T> input(group, where, all);
    group.reduce_scatter(input.range(), one.range(), op);
    expect_bits(one.data(), count, [&](std::size_t i) { return reduced<T>(op, group.size(), own + i); });
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
