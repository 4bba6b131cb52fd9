// The fake NCCL itself: calls that begin as one, and communicators made of communicators.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/fake_gpu/nccl_rank.hpp"
#include "tests/nccl/gate.hpp"

namespace ddp::fake_gpu {
namespace {

using nccl_test::Gate;
using testing::run_ranks;
using testing::Shared;
using Values = std::vector<std::int64_t>;

bool was_taken(Result result) { return result == Result::success || result == Result::in_progress; }

TEST(NcclGroup, SendsAndReceivesMeetInAnyOrder) {
  with_communicator(3, [](Rank& self) {
    const std::size_t n = 200'000;  // more than sockets hold
    const Array<std::int64_t> mine(Values(n, self.rank));
    const auto theirs = Array<std::int64_t>::zeros(3 * n);
    const auto send_to = [&](int peer) {
      EXPECT_TRUE(was_taken(nccl().send(mine.data(), n, kInt64, peer, self.comm, self.stream)));
    };
    const auto receive_from = [&](int peer) {
      EXPECT_TRUE(was_taken(
          nccl().recv(theirs.data() + static_cast<std::size_t>(peer) * n, n, kInt64, peer, self.comm, self.stream)));
    };
    EXPECT_EQ(nccl().group_start(), Result::success);
    if (self.rank == 1) {
      for (const int peer : {2, 1, 0}) receive_from(peer);
      for (const int peer : {0, 1, 2}) send_to(peer);
    } else {
      for (const int peer : {0, 1, 2}) send_to(peer);
      for (const int peer : {1, 0, 2}) receive_from(peer);
    }
    self.expect_begun(nccl().group_end());
    const Values got = theirs.values(self.stream);
    for (std::size_t peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(got[peer * n], static_cast<std::int64_t>(peer));
      EXPECT_EQ(got[peer * n + n - 1], static_cast<std::int64_t>(peer));
    }
  });
}

TEST(NcclGroup, SendsToOneRankArriveInTheirOrder) {
  with_communicator(2, [](Rank& self) {
    const Array<std::int64_t> array({1, 2, 3});
    const auto got = Array<std::int64_t>::zeros(3);
    for (std::int64_t* at = array.data(); self.rank == 0 && at < array.data() + 3; ++at) {
      self.expect_begun(nccl().send(at, 1, kInt64, 1, self.comm, self.stream));
    }
    for (std::int64_t* at = got.data(); self.rank == 1 && at < got.data() + 3; ++at) {
      self.expect_begun(nccl().recv(at, 1, kInt64, 0, self.comm, self.stream));
    }
    EXPECT_EQ(got.values(self.stream), self.rank == 1 ? (Values{1, 2, 3}) : Values(3));
  });
}

TEST(NcclGroup, CollectivesAndSendsMayBeMixedOnSeveralStreams) {
  with_communicator(2, [](Rank& self) {
    const cudaStream_t other = make_stream();
    const Array<std::int64_t> sum({1});
    const Array<std::int64_t> all({self.rank, self.rank});
    const Array<std::int64_t> mine({self.rank});
    const auto theirs = Array<std::int64_t>::zeros(1);
    const auto send = [&] { nccl().send(mine.data(), 1, kInt64, 1 - self.rank, self.comm, self.stream); };
    EXPECT_EQ(nccl().group_start(), Result::success);
    EXPECT_EQ(nccl().group_start(), Result::success);
    if (self.rank == 0) send();
    nccl().all_reduce(sum.data(), sum.data(), 1, kInt64, abi::RedOp::sum, self.comm, other);
    EXPECT_EQ(nccl().group_end(), Result::success) << "the inner end begins nothing";
    nccl().all_gather(all.data() + self.rank, all.data(), 1, kInt64, self.comm, self.stream);
    if (self.rank == 1) send();
    nccl().recv(theirs.data(), 1, kInt64, 1 - self.rank, self.comm, other);
    self.expect_begun(nccl().group_end());
    EXPECT_EQ(theirs.values(other), Values{1 - self.rank});
    EXPECT_EQ(sum.values(self.stream), Values{2});
    EXPECT_EQ(all.values(self.stream), (Values{0, 1}));
  });
}

TEST(NcclGroup, AMistakeInAGroupBeginsNothingOfIt) {
  with_communicator(1, [](Rank& self) {
    const Array<std::int64_t> array({5});
    const Array<std::int64_t> untouched({7});
    EXPECT_EQ(nccl().group_start(), Result::success);
    EXPECT_EQ(nccl().all_reduce(array.data(), untouched.data(), 1, kInt64, abi::RedOp::sum, self.comm, self.stream),
              Result::success);
    EXPECT_EQ(nccl().send(array.data(), 1, kInt64, 1, self.comm, self.stream), Result::invalid_argument);
    EXPECT_EQ(nccl().group_end(), Result::invalid_argument);
    EXPECT_EQ(untouched.values(self.stream), Values{7});
    EXPECT_EQ(nccl().group_end(), Result::invalid_usage);
  });
}

// The sum of all ranks' numbers, by this communicator.
std::int64_t sum_of(abi::Comm comm, std::int64_t number, cudaStream_t stream) {
  const Array<std::int64_t> array({number});
  expect_begun(nccl().all_reduce(array.data(), array.data(), 1, kInt64, abi::RedOp::sum, comm, stream), comm);
  return array.values(stream)[0];
}

// Ranks of the group, in its order, as it sees them.
Values members_of(abi::Comm comm, int own_rank, std::size_t size, cudaStream_t stream) {
  const Array<std::int64_t> own({own_rank});
  const auto all = Array<std::int64_t>::zeros(size);
  expect_begun(nccl().all_gather(own.data(), all.data(), 1, kInt64, comm, stream), comm);
  return all.values(stream);
}

TEST(NcclGroup, ASplitMakesOneCommunicatorForEachColorInTheOrderOfKeys) {
  with_communicator(4, [](Rank& self) {
    const int color = self.rank == 3 ? abi::kSplitNoColor : self.rank % 2;
    abi::Comm part = nullptr;
    self.expect_begun(nccl().split(self.comm, color, -self.rank, &part, nullptr));
    EXPECT_EQ(part == nullptr, self.rank == 3);
    if (self.rank == 3) return;
    EXPECT_EQ(settled(part), Result::success);
    const Values want = self.rank == 1 ? Values{1} : Values{2, 0};
    EXPECT_EQ(members_of(part, self.rank, want.size(), self.stream), want);
    expect_begun(nccl().finalize(part), part);
    EXPECT_EQ(nccl().destroy(part), Result::success);
  });
}

TEST(NcclGroup, APartOutlivesItsWholeAndCanBeSplitAgain) {
  Shared<Meeting> meeting;
  run_ranks(3, [&](int rank) {
    Rank self(*meeting, rank, 3);
    self.expect_begun(self.began);
    abi::Comm first = nullptr;
    abi::Comm second = nullptr;
    self.expect_begun(nccl().split(self.comm, 0, 2 - rank, &first, nullptr));
    self.expect_begun(nccl().split(self.comm, 7, 0, &second, nullptr));
    EXPECT_EQ(sum_of(self.comm, 1, self.stream), 3);
    self.finish();
    EXPECT_EQ(members_of(first, rank, 3, self.stream), (Values{2, 1, 0}));
    EXPECT_EQ(members_of(second, rank, 3, self.stream), (Values{0, 1, 2}));
    abi::Comm part = nullptr;
    expect_begun(nccl().split(first, rank == 0 ? 1 : 0, 0, &part, nullptr), first);
    EXPECT_EQ(sum_of(part, rank, self.stream), rank == 0 ? 0 : 3);
    for (const abi::Comm comm : {part, second, first}) EXPECT_EQ(nccl().destroy(comm), Result::success);
  });
}

TEST(NcclGroup, ASplitWithWorkOutstandingIsRefused) {
  with_communicator(2, [](Rank& self) {
    const Array<std::int64_t> array({1});
    Gate gate;
    gate.close(self.stream);
    self.expect_begun(
        nccl().all_reduce(array.data(), array.data(), 1, kInt64, abi::RedOp::sum, self.comm, self.stream));
    abi::Comm part = nullptr;
    EXPECT_EQ(nccl().split(self.comm, 0, 0, &part, nullptr), Result::invalid_usage);
    gate.open();
    EXPECT_EQ(array.values(self.stream), Values{2});
  });
}

}  // namespace
}  // namespace ddp::fake_gpu
