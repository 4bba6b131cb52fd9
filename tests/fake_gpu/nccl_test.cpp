// The fake NCCL itself: what collectives do, between forked processes.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/fake_gpu/nccl_rank.hpp"
#include "tests/nccl/gate.hpp"

namespace ddp::fake_gpu {
namespace {

using nccl_test::Gate;
using Values = std::vector<std::int64_t>;

// 100 * rank, 100 * rank + 1, ...
Values numbered(int rank, std::size_t count) {
  Values values(count);
  std::iota(values.begin(), values.end(), 100 * rank);
  return values;
}

// The values of `count` for each rank in turn.
Values numbered_by_all(int size, std::size_t count) {
  Values all;
  for (int rank = 0; rank < size; ++rank) {
    for (const auto value : numbered(rank, count)) all.push_back(value);
  }
  return all;
}

TEST(Nccl, CollectivesMoveWhatTheyShould) {
  for (const int size : {1, 2, 4}) {
    SCOPED_TRACE(size);
    with_communicator(size, [](Rank& self) {
      const std::size_t n = 3;
      const int root = self.size - 1;
      const auto ranks = static_cast<std::size_t>(self.size);
      const bool is_root = self.rank == root;
      const Values own = numbered(self.rank, n);
      const Values all = numbered_by_all(self.size, n);
      const Array<std::int64_t> input(own);
      const Array<std::int64_t> whole_input(all);

      const auto broadcast = Array<std::int64_t>::zeros(n);
      self.expect_begun(nccl().broadcast(input.data(), broadcast.data(), n, kInt64, root, self.comm, self.stream));
      EXPECT_EQ(broadcast.values(self.stream), numbered(root, n));

      const auto gathered = Array<std::int64_t>::zeros(n * ranks);
      self.expect_begun(nccl().all_gather(input.data(), gathered.data(), n, kInt64, self.comm, self.stream));
      EXPECT_EQ(gathered.values(self.stream), all);

      const auto at_root = Array<std::int64_t>::zeros(n * ranks);
      self.expect_begun(nccl().gather(input.data(), at_root.data(), n, kInt64, root, self.comm, self.stream));
      EXPECT_EQ(at_root.values(self.stream), is_root ? all : Values(n * ranks));

      const auto scattered = Array<std::int64_t>::zeros(n);
      self.expect_begun(nccl().scatter(whole_input.data(), scattered.data(), n, kInt64, root, self.comm, self.stream));
      EXPECT_EQ(scattered.values(self.stream), own);

      Values mixed = all;  // part r: what this rank sends to r
      for (auto& value : mixed) value += 1000 * self.rank;
      const Array<std::int64_t> to_all(mixed);
      const auto from_all = Array<std::int64_t>::zeros(n * ranks);
      self.expect_begun(nccl().all_to_all(to_all.data(), from_all.data(), n, kInt64, self.comm, self.stream));
      Values want;
      for (int rank = 0; rank < self.size; ++rank) {
        for (const auto value : own) want.push_back(value + 1000 * rank);
      }
      EXPECT_EQ(from_all.values(self.stream), want);
    });
  }
}

TEST(Nccl, SumsGoWhereTheyShould) {
  for (const int size : {1, 2, 4}) {
    SCOPED_TRACE(size);
    with_communicator(size, [](Rank& self) {
      const std::size_t n = 3;
      const auto ranks = static_cast<std::size_t>(self.size);
      Values sum(n);
      for (int rank = 0; rank < self.size; ++rank) {
        for (std::size_t i = 0; i < n; ++i) sum[i] += numbered(rank, n)[i];
      }
      const Array<std::int64_t> input(numbered(self.rank, n));
      const auto reduced = Array<std::int64_t>::zeros(n);
      self.expect_begun(
          nccl().all_reduce(input.data(), reduced.data(), n, kInt64, abi::RedOp::sum, self.comm, self.stream));
      EXPECT_EQ(reduced.values(self.stream), sum);

      const auto at_root = Array<std::int64_t>::zeros(n);
      self.expect_begun(
          nccl().reduce(input.data(), at_root.data(), n, kInt64, abi::RedOp::sum, 0, self.comm, self.stream));
      EXPECT_EQ(at_root.values(self.stream), self.rank == 0 ? sum : Values(n));

      const Array<std::int64_t> whole(numbered(self.rank, n * ranks));
      const auto part = Array<std::int64_t>::zeros(n);
      self.expect_begun(
          nccl().reduce_scatter(whole.data(), part.data(), n, kInt64, abi::RedOp::sum, self.comm, self.stream));
      Values part_of_sum(n);
      for (int rank = 0; rank < self.size; ++rank) {
        const Values theirs = numbered(rank, n * ranks);
        for (std::size_t i = 0; i < n; ++i) part_of_sum[i] += theirs[static_cast<std::size_t>(self.rank) * n + i];
      }
      EXPECT_EQ(part.values(self.stream), part_of_sum);
    });
  }
}

TEST(Nccl, InputsMayBeTheirPlaceInTheOutput) {
  with_communicator(3, [](Rank& self) {
    const Array<std::int64_t> sum({self.rank + 1, 10});
    self.expect_begun(nccl().all_reduce(sum.data(), sum.data(), 2, kInt64, abi::RedOp::sum, self.comm, self.stream));
    EXPECT_EQ(sum.values(self.stream), (Values{6, 30}));

    Values own_part(6);
    own_part[static_cast<std::size_t>(2 * self.rank)] = self.rank + 1;
    const Array<std::int64_t> all(own_part);
    self.expect_begun(nccl().all_gather(all.data() + 2 * self.rank, all.data(), 2, kInt64, self.comm, self.stream));
    EXPECT_EQ(all.values(self.stream), (Values{1, 0, 2, 0, 3, 0}));

    self.expect_begun(nccl().reduce_scatter(all.data(), all.data() + 2 * self.rank, 2, kInt64, abi::RedOp::sum,
                                            self.comm, self.stream));
    EXPECT_EQ(all.values(self.stream)[static_cast<std::size_t>(2 * self.rank)], 3 * (self.rank + 1));

    const Array<std::int64_t> at_root({self.rank + 1});
    self.expect_begun(
        nccl().reduce(at_root.data(), at_root.data(), 1, kInt64, abi::RedOp::max, 1, self.comm, self.stream));
    EXPECT_EQ(at_root.values(self.stream)[0], self.rank == 1 ? 3 : self.rank + 1);
  });
}

// The elements 2 and 3 of two ranks, in a type, by an operator.
template <class T>
void expect_reduced(Rank& self, abi::DataType type, std::vector<T> two_and_three, abi::RedOp op, T want) {
  SCOPED_TRACE(::testing::Message() << "type " << static_cast<int>(type) << " operator " << static_cast<int>(op));
  const Array<T> array({two_and_three.at(static_cast<std::size_t>(self.rank))});
  self.expect_begun(nccl().all_reduce(array.data(), array.data(), 1, type, op, self.comm, self.stream));
  EXPECT_EQ(array.values(self.stream)[0], want);
}

// sum, product, max, min, average
template <class T>
void expect_all_operators(Rank& self, abi::DataType type, std::vector<T> two_and_three, std::vector<T> want) {
  for (std::size_t op = 0; op < want.size(); ++op) {
    expect_reduced(self, type, two_and_three, static_cast<abi::RedOp>(op), want[op]);
  }
}

TEST(Nccl, SumsInEveryTypeByEveryOperator) {
  with_communicator(2, [](Rank& self) {
    expect_all_operators<float>(self, abi::DataType::float32, {2, 3}, {5, 6, 3, 2, 2.5});
    expect_all_operators<double>(self, abi::DataType::float64, {2, 3}, {5, 6, 3, 2, 2.5});
    expect_all_operators<std::int64_t>(self, abi::DataType::int64, {2, 3}, {5, 6, 3, 2, 2});
    expect_all_operators<std::int32_t>(self, abi::DataType::int32, {2, 3}, {5, 6, 3, 2, 2});
    expect_all_operators<std::uint8_t>(self, abi::DataType::uint8, {2, 3}, {5, 6, 3, 2, 2});
    expect_all_operators<std::uint16_t>(self, abi::DataType::float16, {0x4000, 0x4200},
                                        {0x4500, 0x4600, 0x4200, 0x4000, 0x4100});
    expect_all_operators<std::uint16_t>(self, abi::DataType::bfloat16, {0x4000, 0x4040},
                                        {0x40a0, 0x40c0, 0x4040, 0x4000, 0x4020});
  });
}

TEST(Nccl, LargeMessagesArrive) {
  with_communicator(2, [](Rank& self) {
    const std::size_t n = 300'000;  // more than sockets hold
    const Array<std::int64_t> array(numbered(self.rank, n));
    self.expect_begun(
        nccl().all_reduce(array.data(), array.data(), n, kInt64, abi::RedOp::sum, self.comm, self.stream));
    const Values sum = array.values(self.stream);
    EXPECT_EQ(sum.front(), 100);
    EXPECT_EQ(sum.back(), 100 + 2 * static_cast<std::int64_t>(n - 1));
  });
}

TEST(Nccl, WorkOfACommunicatorRunsInTheOrderOfItsCallsOnAnyStreams) {
  with_communicator(2, [](Rank& self) {
    const cudaStream_t other = make_stream();
    const Array<std::int64_t> array({1});
    Gate gate;
    gate.close(self.stream);
    self.expect_begun(
        nccl().all_reduce(array.data(), array.data(), 1, kInt64, abi::RedOp::sum, self.comm, self.stream));
    self.expect_begun(nccl().all_reduce(array.data(), array.data(), 1, kInt64, abi::RedOp::product, self.comm, other));
    EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady);
    gate.open();
    EXPECT_EQ(array.values(other), Values{4});
  });
}

}  // namespace
}  // namespace ddp::fake_gpu
