// Every call of a group of the backend nccl between forked processes, over the stand-in and on a GPU.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>

#include "tests/integration/collective_values.hpp"
#include "tests/nccl/numbered.hpp"
#include "tests/nccl/rank.hpp"

namespace ddp::nccl_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::thrown_by;
using Values = std::vector<std::int64_t>;

Values reduced(ReduceOp op, int size, std::size_t count = kCount) {
  Values result = numbered(0, count);
  for (int rank = 1; rank < size; ++rank) {
    const Values other = numbered(rank, count);
    for (std::size_t i = 0; i < count; ++i) {
      switch (op) {
        case ReduceOp::sum:
        case ReduceOp::premul_sum:
        case ReduceOp::average: result[i] += other[i]; break;
        case ReduceOp::product: result[i] *= other[i]; break;
        case ReduceOp::min: result[i] = std::min(result[i], other[i]); break;
        case ReduceOp::max: result[i] = std::max(result[i], other[i]); break;
      }
    }
  }
  if (op == ReduceOp::average) {
    for (auto& value : result) value /= size;
  }
  return result;
}

void with_groups(const std::function<void(ProcessGroup& group)>& body) {
  for (const int size : {1, 2, 4}) {
    SCOPED_TRACE("ranks: " + std::to_string(size));
    run_ranks(size, [&](int) {
      auto group = join();
      body(group);
    });
  }
}

TEST(Backend, ReducesByEveryOperator) {
  with_groups([](ProcessGroup& group) {
    for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      const Array<std::int64_t> values(group.device(), numbered(group.rank()));
      group.all_reduce(values.range(), op);
      EXPECT_EQ(values.values(), reduced(op, group.size()));

      const Array<std::int64_t> input(group.device(), numbered(group.rank()));
      const Array<std::int64_t> at_root(group.device(), kCount);
      const int root = group.size() - 1;
      const bool is_root = group.rank() == root;
      group.reduce(input.range(), is_root ? at_root.range() : MemoryRange({}, 0, DataType::int64, group.device()), root,
                   op);
      EXPECT_EQ(at_root.values(), is_root ? reduced(op, group.size()) : Values(kCount));
    }
  });
}

// Small numbers, which all types hold exactly, as they do sums and products of them.
template <class T>
T small_number(int rank, std::size_t i) {
  return testing::narrowed<T>(static_cast<testing::Wide<T>>(static_cast<int>(i % 3) + rank % 2 + 1));
}

double small_factor(ReduceOp op, int rank) { return op != ReduceOp::premul_sum ? 1 : rank % 2 == 0 ? 0.5 : -2; }

template <class T>
T reduced_number(ReduceOp op, int size, std::size_t i) {
  const auto given = [&](int rank) {
    return testing::widened(testing::multiplied(small_number<T>(rank, i), small_factor(op, rank)));
  };
  auto value = given(0);
  for (int rank = 1; rank < size; ++rank) value = testing::combined(op, value, given(rank));
  return testing::narrowed<T>(testing::divided(op, value, static_cast<std::size_t>(size)));
}

template <class T>
void expect_every_operator(ProcessGroup& group) {
  constexpr std::size_t kOdd = 10'007;
  std::vector<T> own(kOdd);
  for (std::size_t i = 0; i < kOdd; ++i) own[i] = small_number<T>(group.rank(), i);
  const Array<T> values(group.device(), kOdd);
  for (const auto op : testing::ops_for<T>(kOdd)) {
    values.write(own);
    group.all_reduce(values.range(), op, {.factor = small_factor(op, group.rank())});
    std::vector<T> wanted(kOdd);
    for (std::size_t i = 0; i < kOdd; ++i) wanted[i] = reduced_number<T>(op, group.size(), i);
    testing::expect_bits("type " + std::to_string(static_cast<int>(DataTypeOf<T>::value)) + ", operator " +
                             std::to_string(static_cast<int>(op)),
                         values.values().data(), wanted);
  }
}

TEST(Backend, ReducesEveryTypeByEveryOperator) {
  with_groups([](ProcessGroup& group) {
    expect_every_operator<float>(group);
    expect_every_operator<double>(group);
    expect_every_operator<std::int32_t>(group);
    expect_every_operator<std::int64_t>(group);
    expect_every_operator<std::uint8_t>(group);
    expect_every_operator<std::int8_t>(group);
    expect_every_operator<testing::Boolean>(group);
    expect_every_operator<tensor::Float16>(group);
    expect_every_operator<tensor::Bfloat16>(group);
  });
}

TEST(Backend, MovesValuesWhereTheyShouldGo) {
  with_groups([](ProcessGroup& group) {
    const int root = group.size() - 1;
    const bool is_root = group.rank() == root;
    const auto ranks = static_cast<std::size_t>(group.size());
    const Values own = numbered(group.rank());
    const Values all = numbered_by_all(group.size());
    const Array<std::int64_t> input(group.device(), own);
    const MemoryRange nothing({}, 0, DataType::int64, group.device());

    const Array<std::int64_t> broadcast(group.device(), own);
    group.broadcast(broadcast.range(), root);
    EXPECT_EQ(broadcast.values(), numbered(root));

    const Array<std::int64_t> gathered(group.device(), kCount * ranks);
    group.all_gather(input.range(), gathered.range());
    EXPECT_EQ(gathered.values(), all);

    const Array<std::int64_t> at_root(group.device(), kCount * ranks);
    group.gather(input.range(), is_root ? at_root.range() : nothing, root);
    EXPECT_EQ(at_root.values(), is_root ? all : Values(kCount * ranks));

    const Array<std::int64_t> scattered(group.device(), kCount);
    group.scatter(is_root ? gathered.range() : nothing, scattered.range(), root);
    EXPECT_EQ(scattered.values(), own);

    const Array<std::int64_t> whole(group.device(), numbered(group.rank(), kCount * ranks));
    const Array<std::int64_t> part(group.device(), kCount);
    group.reduce_scatter(whole.range(), part.range());
    const Values sum = reduced(ReduceOp::sum, group.size(), kCount * ranks);
    const auto begin = sum.begin() + static_cast<std::ptrdiff_t>(kCount) * group.rank();
    EXPECT_EQ(part.values(), Values(begin, begin + static_cast<std::ptrdiff_t>(kCount)));

    Values mixed = all;  // part r: what this rank sends to r
    for (auto& value : mixed) value += 1000 * group.rank();
    const Array<std::int64_t> to_all(group.device(), mixed);
    const Array<std::int64_t> from_all(group.device(), kCount * ranks);
    group.all_to_all(to_all.range(), from_all.range());
    Values want;
    for (int rank = 0; rank < group.size(); ++rank) {
      for (const auto value : own) want.push_back(value + 1000 * rank);
    }
    EXPECT_EQ(from_all.values(), want);
    group.barrier();
  });
}

TEST(Backend, SendsAndReceivesInOrder) {
  run_ranks(2, [](int rank) {
    auto group = join();
    for (int i = 0; i < 3; ++i) {
      const Array<std::int64_t> values(group.device(), numbered(rank, kCount, i));
      rank == 0 ? group.send(values.range(), 1) : group.receive(values.range(), 0);
      EXPECT_EQ(values.values(), numbered(0, kCount, i));
    }
  });
}

TEST(Backend, CoalescedCallsMeetInAnyOrder) {
  run_ranks(3, [](int rank) {
    auto group = join();
    const int next = (rank + 1) % 3;
    const int last = (rank + 2) % 3;
    const Array<std::int64_t> own(group.device(), numbered(rank));
    const Array<std::int64_t> from_last(group.device(), kCount);
    const Array<std::int64_t> from_next(group.device(), kCount);
    std::vector<Work> works;
    Work all = group.coalesce([&] {
      works.push_back(group.send_async(own.range(), next));
      works.push_back(group.send_async(own.range(), last));
      works.push_back(group.receive_async(from_last.range(), last));
      works.push_back(group.receive_async(from_next.range(), next));
    });
    all.wait();
    for (Work& work : works) work.wait();
    EXPECT_EQ(from_last.values(), numbered(last));
    EXPECT_EQ(from_next.values(), numbered(next));
  });
}

TEST(Backend, SubGroupsAreGroupsOfTheirOwn) {
  run_ranks(4, [](int rank) {
    auto group = join();
    auto half = group.split(rank % 2, -rank);  // the higher rank first
    ASSERT_EQ(half.size(), 2);
    EXPECT_EQ(half.rank(), rank < 2 ? 1 : 0);
    const Array<std::int64_t> values(group.device(), Values{std::int64_t{1} << rank});
    half.all_reduce(values.range());
    EXPECT_EQ(values.values().front(), rank % 2 == 0 ? 5 : 10);

    auto three = group.new_group({3, 0, 1});
    if (rank == 2) {
      thrown_by<InvalidArgument>([&] { three.rank(); });
    } else {
      EXPECT_EQ(three.rank(), rank == 3 ? 0 : rank + 1);
      const Array<std::int64_t> own(group.device(), Values{rank});
      const Array<std::int64_t> all(group.device(), 3);
      three.all_gather(own.range(), all.range());
      EXPECT_EQ(all.values(), (Values{3, 0, 1}));
    }
    group.barrier();
  });
}

TEST(Backend, ADeadSubGroupLeavesItsParentAlone) {
  run_ranks(2, [](int rank) {
    auto group = join();
    auto pair = group.split(0, rank);
    group.barrier();
    if (rank == 0) pair.abort("enough of it");
    rank == 0 ? static_cast<void>(thrown_by<AbortedError>([&] { pair.barrier(); }))
              : static_cast<void>(thrown_by<RankFailure>([&] {
                  for (;;) pair.barrier();
                }));
    group.barrier();
  });
}

TEST(Backend, AllocatesMemoryThatStartsAsZeroAndIsRegistered) {
  run_ranks(2, [](int rank) {
    auto group = join();
    {
      const RegisteredMemory memory = group.allocate(1000 * sizeof(double));
      EXPECT_EQ(memory.device(), group.device());
      expect_live("ncclMemAlloc", 1);
      expect_live("ncclCommRegister", 1);
      std::vector<double> values(1000, 1);
      EXPECT_EQ(cudaMemcpy(values.data(), memory.data(), memory.bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
      EXPECT_THAT(values, Each(0.0));
      values.assign(1000, rank + 1);
      EXPECT_EQ(cudaMemcpy(memory.data(), values.data(), memory.bytes(), cudaMemcpyHostToDevice), cudaSuccess);
      group.all_reduce({memory.data(), 1000, DataType::float64, group.device()});
      EXPECT_EQ(cudaMemcpy(values.data(), memory.data(), memory.bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
      EXPECT_THAT(values, Each(3.0));
    }
    expect_live("ncclMemAlloc", 0);
    expect_live("ncclCommRegister", 0);
  });
}

TEST(Backend, DifferentSizesToAllocateAreAMismatch) {
  run_ranks(2, [](int rank) {
    auto group = join();
    const auto error = thrown_by<MismatchError>([&] { group.allocate(rank == 0 ? 100 : 200); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("called allocate of 100 bytes"));
    thrown_by<AbortedError>([&] { group.barrier(); });
  });
}

TEST(Backend, AForkedChildHasNoPartInIt) {
  run_ranks(2, [](int rank) {
    auto group = join();
    const Array<float> values(group.device(), 10);
    Work work = group.all_reduce_async(values.range());
    const pid_t child = ::fork();
    if (child == 0) {
      const auto refused = [](const auto& call) {
        try {
          call();
        } catch (const InvalidArgument&) {
          return true;
        }
        return false;
      };
      const bool all = refused([&] { group.barrier(); }) && refused([&] { work.wait(); }) &&
                       refused([&] { group.abort("x"); }) && refused([&] { group.allocate(1); });
      ::_exit(all ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "rank " << rank;
    work.wait();
    group.barrier();
  });
}

}  // namespace
}  // namespace ddp::nccl_test
