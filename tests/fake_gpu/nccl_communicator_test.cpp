// The fake NCCL itself: the life of healthy communicators, and what they refuse.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/fake_gpu/nccl_rank.hpp"
#include "tests/nccl/gate.hpp"

namespace ddp::fake_gpu {
namespace {

using nccl_test::Gate;
using testing::run_ranks;
using testing::Shared;
using Values = std::vector<std::int64_t>;

TEST(NcclCommunicator, ANonBlockingCallIsOnItsStreamOnceItIsNoLongerInProgress) {
  set_faults("ncclAllReduce:1:delay:50");
  with_communicator(2, [](Rank& self) {
    const Array<std::int64_t> array({1});
    EXPECT_EQ(nccl().all_reduce(array.data(), array.data(), 1, kInt64, abi::RedOp::sum, self.comm, self.stream),
              Result::in_progress);
    EXPECT_EQ(settled(self.comm), Result::success);
    EXPECT_EQ(array.values(self.stream), Values{2});
  });
  set_faults("");
}

TEST(NcclCommunicator, BlockingCommunicatorsNeedNoWaiting) {
  Shared<Meeting> meeting;
  run_ranks(2, [&](int rank) {
    Rank self(*meeting, rank, 2, 1);
    EXPECT_EQ(self.began, Result::success);
    const Array<std::int64_t> array({1});
    EXPECT_EQ(nccl().all_reduce(array.data(), array.data(), 1, kInt64, abi::RedOp::sum, self.comm, self.stream),
              Result::success);
    EXPECT_EQ(array.values(self.stream), Values{2});
    EXPECT_EQ(nccl().destroy(self.comm), Result::success);
  });
}

TEST(NcclCommunicator, FinalizingWaitsForWork) {
  Shared<Meeting> meeting;
  run_ranks(1, [&](int rank) {
    const Rank self(*meeting, rank, 1);
    self.expect_begun(self.began);
    const Array<std::int64_t> array({1});
    const auto all_reduce = [&] {
      return nccl().all_reduce(array.data(), array.data(), 1, kInt64, abi::RedOp::sum, self.comm, self.stream);
    };
    Gate gate;
    gate.close(self.stream);
    self.expect_begun(all_reduce());
    EXPECT_EQ(nccl().finalize(self.comm), Result::in_progress);
    Result state = Result::in_progress;
    for (int i = 0; i < 20'000 && state == Result::in_progress; ++i) {  // many chances to be over too early
      nccl().get_async_error(self.comm, &state);
      std::this_thread::yield();
    }
    EXPECT_EQ(state, Result::in_progress);
    gate.open();
    EXPECT_EQ(settled(self.comm), Result::success);
    EXPECT_EQ(cudaStreamQuery(self.stream), cudaSuccess);
    EXPECT_EQ(all_reduce(), Result::invalid_usage);
    EXPECT_EQ(nccl().destroy(self.comm), Result::success);
  });
}

TEST(NcclCommunicator, ThreadsOfOneProcessMayBeRanks) {
  Meeting meeting{};
  const auto run = [&](int rank) {
    Rank self(meeting, rank, 2);
    self.expect_begun(self.began);
    const Array<std::int64_t> array({rank + 1});
    self.expect_begun(
        nccl().all_reduce(array.data(), array.data(), 1, kInt64, abi::RedOp::sum, self.comm, self.stream));
    EXPECT_EQ(array.values(self.stream), Values{3});
    self.finish();
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  fake_gpu_restart();  // the next test forks
}

TEST(NcclCommunicator, MemoryOfItsOwnIsRegistered) {
  with_communicator(1, [](Rank& self) {
    void* memory = nullptr;
    void* handle = nullptr;
    EXPECT_EQ(nccl().mem_alloc(&memory, 64), Result::success);
    EXPECT_EQ(nccl().register_memory(self.comm, memory, 64, &handle), Result::success);
    EXPECT_EQ(fake_gpu_live("ncclMemAlloc") + fake_gpu_live("ncclCommRegister"), 2U);
    EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue) << "it has its own way back";
    EXPECT_EQ(nccl().deregister(self.comm, handle), Result::success);
    EXPECT_EQ(nccl().deregister(self.comm, handle), Result::invalid_argument);
    EXPECT_EQ(nccl().register_memory(self.comm, memory, 65, &handle), Result::invalid_argument);
    EXPECT_EQ(nccl().mem_free(memory), Result::success);
    EXPECT_EQ(fake_gpu_live("ncclMemAlloc") + fake_gpu_live("ncclCommRegister"), 0U);
  });
}

TEST(NcclCommunicator, WrongArgumentsAreRefusedAndTheCommunicatorGoesOn) {
  with_communicator(2, [](Rank& self) {
    const Array<std::int64_t> array({1, 2});
    Values foreign(2);
    const auto all_reduce = [&](std::int64_t* memory, std::size_t count, abi::DataType type, abi::RedOp op,
                                cudaStream_t stream) {
      return nccl().all_reduce(memory, memory, count, type, op, self.comm, stream);
    };
    const auto sum = abi::RedOp::sum;
    EXPECT_EQ(all_reduce(foreign.data(), 2, kInt64, sum, self.stream), Result::invalid_argument);
    EXPECT_STREQ(nccl().get_last_error(self.comm), "the input is not memory of this device");
    EXPECT_EQ(all_reduce(array.data(), 3, kInt64, sum, self.stream), Result::invalid_argument) << "beyond its end";
    EXPECT_EQ(all_reduce(array.data(), 2, static_cast<abi::DataType>(12), sum, self.stream), Result::invalid_argument);
    EXPECT_EQ(all_reduce(array.data(), 2, kInt64, static_cast<abi::RedOp>(5), self.stream), Result::invalid_argument);
    const auto no_stream = reinterpret_cast<cudaStream_t>(std::uintptr_t{0x77});
    EXPECT_EQ(all_reduce(array.data(), 2, kInt64, sum, no_stream), Result::invalid_argument);
    EXPECT_EQ(nccl().broadcast(array.data(), array.data(), 2, kInt64, 2, self.comm, self.stream),
              Result::invalid_argument);
    EXPECT_EQ(nccl().group_end(), Result::invalid_usage);
    self.expect_begun(all_reduce(array.data(), 2, kInt64, sum, self.stream));
    EXPECT_EQ(array.values(self.stream), (Values{2, 4}));
  });
}

TEST(NcclCommunicator, AStaleHandleIsRefused) {
  Shared<Meeting> meeting;
  run_ranks(1, [&](int) {
    const Rank self(*meeting, 0, 1);
    self.expect_begun(self.began);
    self.finish();
    Result state{};
    EXPECT_EQ(nccl().get_async_error(self.comm, &state), Result::invalid_argument);
    EXPECT_EQ(nccl().destroy(self.comm), Result::invalid_argument);
    EXPECT_EQ(nccl().abort(self.comm), Result::invalid_argument);
  });
}

TEST(NcclCommunicator, TwoRanksOfAHostMustNotShareADevice) {
  for (const bool hosts_of_their_own : {false, true}) {
    SCOPED_TRACE(hosts_of_their_own);
    Shared<Meeting> meeting;
    run_ranks(2, [&](int rank) {
      if (hosts_of_their_own) ::setenv("NCCL_HOSTID", std::to_string(rank).c_str(), 1);
      ::setenv("CUDA_VISIBLE_DEVICES", rank == 0 ? "3,1" : "1,3", 1);  // device `rank` is device 3 of the host on both
      const Rank self(*meeting, rank, 2);
      EXPECT_EQ(settled(self.comm), hosts_of_their_own ? Result::success : Result::invalid_usage);
      const bool is_told = std::strstr(nccl().get_last_error(self.comm), "Duplicate GPU") != nullptr;
      EXPECT_EQ(is_told, !hosts_of_their_own);
      EXPECT_EQ(nccl().abort(self.comm), Result::success);
    });
  }
}

TEST(NcclCommunicator, AnOlderOneHasAnOlderVersionAndLessToOffer) {
  run_ranks(1, [](int) {
    const Nccl old(DDP_FAKE_NCCL_OLD);
    int version = 0;
    EXPECT_EQ(old.get_version(&version), Result::success);
    EXPECT_EQ(version, 21903);
    EXPECT_FALSE(old.has_later);
    EXPECT_TRUE(nccl().has_later);
    ::setenv("FAKE_NCCL_VERSION", "21700", 1);
    EXPECT_EQ(nccl().get_version(&version), Result::success);
    EXPECT_EQ(version, 21700);
  });
}

}  // namespace
}  // namespace ddp::fake_gpu
