// The fake NCCL itself: what goes wrong by a fault, by a peer's death, or by an abort.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/fake_gpu/nccl_rank.hpp"

namespace ddp::fake_gpu {
namespace {

using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::wait_until;
using Values = std::vector<std::int64_t>;

Result all_reduce(const Rank& self, const Array<std::int64_t>& array) {
  return nccl().all_reduce(array.data(), array.data(), array.count(), abi::DataType::int64, abi::RedOp::sum, self.comm,
                           self.stream);
}

Result state_of(const Rank& self) {
  Result state{};
  EXPECT_EQ(nccl().get_async_error(self.comm, &state), Result::success);
  return state;
}

void wait_for_state(const Rank& self, Result want) {
  wait_until([&] { return state_of(self) == want; });
}

void expect_stuck_until_abort(const Rank& self) {
  EXPECT_EQ(cudaStreamQuery(self.stream), cudaErrorNotReady);
  EXPECT_EQ(nccl().abort(self.comm), Result::success);
  EXPECT_EQ(cudaStreamSynchronize(self.stream), cudaSuccess);
}

// Waits until all ranks have come here; `at` counts them, and starts at 0.
void meet_at(std::atomic<int>& at, int ranks) {
  ++at;
  wait_until([&] { return at.load() == ranks; });
}

// Two communicators, one after the other, of the ranks of a test.
struct Meetings {
  Meeting first;
  Meeting second;
};

// That this process can go on with another communicator.
void expect_a_new_one_works(Meeting& meeting, int rank, int size) {
  const Rank self(meeting, rank, size);
  self.expect_begun(self.began);
  const Array<std::int64_t> array({1});
  self.expect_begun(all_reduce(self, array));
  EXPECT_EQ(array.values(self.stream), Values{size});
  self.finish();
}

struct Death {
  const char* when;
  const char* fault;  // of rank 1
};

TEST(NcclFailure, APeersDeathIsARemoteErrorForWhoeverNeedsIt) {
  for (const Death& death : {Death{"before a collective", "ncclAllReduce:1:die"},
                             Death{"in it", "ncclAllReduce:1:die_inside"}, Death{"after it", "ncclAllReduce:2:die"}}) {
    SCOPED_TRACE(death.when);
    Shared<Meeting> meeting;
    RankProcesses ranks(3, [&](int rank) {
      if (rank == 1) set_faults(death.fault);
      const Rank self(*meeting, rank, 3);
      self.expect_begun(self.began);
      const Array<std::int64_t> array(Values(1000, 1));
      for (int i = 0; i < 2; ++i) {
        all_reduce(self, array);
        settled(self.comm);
      }
      wait_for_state(self, Result::remote_error);
      EXPECT_EQ(all_reduce(self, array), Result::remote_error) << "and for every later call";
      expect_stuck_until_abort(self);
    });
    ranks.expect_killed(1);
    ranks.expect_success(0);
    ranks.expect_success(2);
  }
}

TEST(NcclFailure, ADeadPeerHangsTheOthersWhereTheEnvironmentSaysSo) {
  ::setenv("FAKE_NCCL_DEAD_PEER", "hang", 1);
  Shared<Meeting> meeting;
  Shared<std::atomic<int>> is_dead;
  RankProcesses ranks(2, [&](int rank) {
    if (rank == 1) set_faults("ncclAllReduce:1:die_inside");
    const Rank self(*meeting, rank, 2);
    self.expect_begun(self.began);
    const Array<std::int64_t> array(Values(1000, 1));
    all_reduce(self, array);
    wait_until([&] { return is_dead->load() == 1; });
    EXPECT_EQ(settled(self.comm), Result::success);
    expect_stuck_until_abort(self);
  });
  ranks.expect_killed(1);
  is_dead->store(1);
  ranks.expect_success(0);
  ::unsetenv("FAKE_NCCL_DEAD_PEER");
}

TEST(NcclFailure, WhatHangsOnOneRankHangsOnAllUntilTheyAbort) {
  Shared<Meetings> meetings;
  Shared<std::atomic<int>> called;
  Shared<std::atomic<int>> aborted;
  run_ranks(3, [&](int rank) {
    if (rank == 1) set_faults("ncclAllReduce:2:hang");
    {
      const Rank self(meetings->first, rank, 3);
      self.expect_begun(self.began);
      const Array<std::int64_t> array({1});
      self.expect_begun(all_reduce(self, array));
      EXPECT_EQ(array.values(self.stream), Values{3});
      self.expect_begun(all_reduce(self, array));
      meet_at(*called, 3);
      if (rank != 0) wait_until([&] { return aborted->load() == 1; });
      expect_stuck_until_abort(self);  // rank 0 while the others hang
      aborted->store(1);
    }
    expect_a_new_one_works(meetings->second, rank, 3);
  });
}

TEST(NcclFailure, AnAbortIsARemoteErrorForTheOthers) {
  Shared<Meeting> meeting;
  run_ranks(2, [&](int rank) {
    const Rank self(*meeting, rank, 2);
    self.expect_begun(self.began);
    const Array<std::int64_t> array({1});
    if (rank == 1) {
      all_reduce(self, array);
      wait_for_state(self, Result::remote_error);
    }
    EXPECT_EQ(nccl().abort(self.comm), Result::success);
  });
}

TEST(NcclFailure, AnAsynchronousErrorOnOneRankIsSeenThereAlone) {
  Shared<Meeting> meeting;
  Shared<std::atomic<int>> failed;
  Shared<std::atomic<int>> looked;
  run_ranks(2, [&](int rank) {
    if (rank == 1) set_faults("ncclAllReduce:1:async:3");
    const Rank self(*meeting, rank, 2);
    self.expect_begun(self.began);
    const Array<std::int64_t> array({1});
    all_reduce(self, array);
    if (rank == 1) {
      wait_for_state(self, Result::internal_error);
      failed->store(1);
    } else {
      wait_until([&] { return failed->load() == 1; });
      EXPECT_EQ(settled(self.comm), Result::success);
    }
    meet_at(*looked, 2);
    expect_stuck_until_abort(self);
  });
}

TEST(NcclFailure, FaultsOfTheErrorQueryItself) {
  run_ranks(1, [](int) {
    set_faults("ncclCommGetAsyncError:2:return:1;ncclCommGetAsyncError:4:async:6");
    Meeting meeting{};
    const Rank self(meeting, 0, 1, 1);
    EXPECT_EQ(state_of(self), Result::success);
    Result state{};
    EXPECT_EQ(nccl().get_async_error(self.comm, &state), Result::unhandled_cuda_error);
    EXPECT_EQ(state_of(self), Result::success);
    EXPECT_EQ(state_of(self), Result::remote_error);
    EXPECT_EQ(nccl().abort(self.comm), Result::success);
  });
}

TEST(NcclFailure, AnInitThatNeverEndsIsInProgressUntilItIsAborted) {
  Shared<Meetings> meetings;
  Shared<std::atomic<int>> stuck;
  run_ranks(2, [&](int rank) {
    if (rank == 1) set_faults("ncclCommInitRankConfig:1:hang");
    {
      const Rank self(meetings->first, rank, 2);
      EXPECT_EQ(self.began, Result::in_progress);
      EXPECT_EQ(state_of(self), Result::in_progress);
      const Array<std::int64_t> array({1});
      EXPECT_EQ(all_reduce(self, array), Result::invalid_argument);
      EXPECT_EQ(nccl().destroy(self.comm), Result::invalid_argument);
      meet_at(*stuck, 2);
      EXPECT_EQ(nccl().abort(self.comm), Result::success);
    }
    expect_a_new_one_works(meetings->second, rank, 2);
  });
}

TEST(NcclFailure, ARankThatNeverComesKeepsTheOthersInProgress) {
  Shared<Meeting> meeting;
  RankProcesses ranks(3,
                      [&](int rank) {
                        const Rank self(*meeting, rank, 3);
                        EXPECT_EQ(self.began, Result::in_progress);
                        if (rank == 0) {
                          EXPECT_EQ(state_of(self), Result::in_progress);
                        } else {
                          wait_for_state(self, Result::remote_error);  // rank 0 has given up
                        }
                        EXPECT_EQ(nccl().abort(self.comm), Result::success);
                      },
                      {2});
  ranks.expect_success(0);
  ranks.expect_success(1);
}

TEST(NcclFailure, ADeathInTheInitIsARemoteError) {
  Shared<Meeting> meeting;
  RankProcesses ranks(2, [&](int rank) {
    if (rank == 0) set_faults("ncclCommInitRankConfig:1:die_inside");
    const Rank self(*meeting, rank, 2);
    wait_for_state(self, Result::remote_error);
    EXPECT_EQ(nccl().abort(self.comm), Result::success);
  });
  ranks.expect_killed(0);
  ranks.expect_success(1);
}

TEST(NcclFailure, ASplitThatHangsOnOneRankHangsOnAll) {
  Shared<Meeting> meeting;
  Shared<std::atomic<int>> called;
  Shared<std::atomic<int>> looked;
  run_ranks(2, [&](int rank) {
    if (rank == 1) set_faults("ncclCommSplit:1:hang");
    const Rank self(*meeting, rank, 2);
    self.expect_begun(self.began);
    abi::Comm part = nullptr;
    EXPECT_EQ(nccl().split(self.comm, 0, 0, &part, nullptr), Result::in_progress);
    meet_at(*called, 2);
    EXPECT_EQ(state_of(self), Result::in_progress);
    meet_at(*looked, 2);
    if (rank == 0) wait_for_state(self, Result::remote_error);  // once rank 1 has given up
    EXPECT_EQ(nccl().abort(self.comm), Result::success);
    EXPECT_EQ(part, nullptr);
  });
}

TEST(NcclFailure, RanksThatCallDifferentThingsHang) {
  Shared<Meeting> meeting;
  Shared<std::atomic<int>> called;
  run_ranks(2, [&](int rank) {
    const Rank self(*meeting, rank, 2);
    self.expect_begun(self.began);
    const Array<std::int64_t> array(Values(2 + static_cast<std::size_t>(rank), 1));
    self.expect_begun(all_reduce(self, array));
    meet_at(*called, 2);
    expect_stuck_until_abort(self);
  });
}

TEST(NcclFailure, ALostDeviceIsACudaErrorButCanBeAborted) {
  run_ranks(1, [](int) {
    set_faults("cudaStreamQuery:1:sticky:719");
    Meeting meeting{};
    const Rank self(meeting, 0, 1, 1);
    const Array<std::int64_t> array({1});
    EXPECT_EQ(cudaStreamQuery(self.stream), cudaErrorLaunchFailure);
    EXPECT_EQ(all_reduce(self, array), Result::unhandled_cuda_error);
    EXPECT_EQ(state_of(self), Result::unhandled_cuda_error);
    EXPECT_EQ(nccl().abort(self.comm), Result::success);
  });
}

TEST(NcclFailure, TwoThreadsInCallsOnOneCommunicatorAbortTheProcess) {
  Shared<Meeting> meeting;
  RankProcesses ranks(1, [&](int rank) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    set_faults("ncclCommGetAsyncError:1:hang");
    const Rank self(*meeting, rank, 1, 1);
    std::thread other([&] { state_of(self); });
    state_of(self);  // one of the two is in the call for ever
    other.join();
  });
  ranks.expect_killed(0, SIGABRT);
}

TEST(NcclFailure, CallsFailByTheCodeOfAFault) {
  run_ranks(1, [](int) {
    set_faults("ncclGetUniqueId:1:return:2;ncclMemAlloc:1+:return:1");
    abi::UniqueId id{};
    EXPECT_EQ(nccl().get_unique_id(&id), Result::system_error);
    EXPECT_EQ(nccl().get_unique_id(&id), Result::success);
    void* memory = nullptr;
    for (int i = 0; i < 2; ++i) EXPECT_EQ(nccl().mem_alloc(&memory, 8), Result::unhandled_cuda_error);
  });
}

}  // namespace
}  // namespace ddp::fake_gpu
