// What the ranks of a group of the backend nccl see when something goes wrong under way, over the stand-in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "tests/fake_gpu/backend_rank.hpp"
#include "tests/nccl/failing.hpp"
#include "tests/nccl/gate.hpp"
#include "worker_runtime/core/bootstrap/tcp_store.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp::fake_gpu {
namespace {

using nccl_test::expect_group_is_useless;
using nccl_test::reduce_without_end;
using std::chrono::milliseconds;
using testing::AllHere;
using ::testing::AllOf;
using testing::connections_to;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

using Values = std::vector<float>;

constexpr milliseconds kLimit{2'000};  // of calls that only their timeout can end

std::uint16_t store_port() { return static_cast<std::uint16_t>(std::stoi(::getenv("MASTER_PORT"))); }

TEST(StoreNews, TakeOneConnectionHoweverManyGroupsThereAre) {
  run_ranks(2, [](int) {
    std::vector<ProcessGroup> groups{join(), join()};
    for (int i = 0; i < 6; ++i) groups.push_back(groups[static_cast<std::size_t>(i)].split(0));
    for (auto& group : groups) group.barrier();
    wait_until([] { return connections_to(store_port()) > 0; });  // made on a thread of the news
    EXPECT_EQ(connections_to(store_port()), 1U);
  });
}

TEST(StoreNews, OfOneGroupLeaveAnotherAlone) {
  run_ranks(3, [](int rank) {
    auto group = join();
    auto part = group.split(rank == 2 ? 1 : 0);
    auto other = join();
    group.barrier();
    if (rank == 0) part.abort("enough of it");
    if (rank == 1) {
      const auto error = thrown_by<RankFailure>([&] {
        for (;;) part.barrier();
      });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(0));
    }
    for (auto* each : {&group, &other}) each->barrier();
  });
}

// A store that the program lends has no address: nobody is told, and the deadline is what is left.
TEST(StoreNews, AreNotToldWhereTheStoreIsAnObject) {
  run_ranks(2, [](int rank) {
    const auto store = std::make_shared<core::TcpStore>(
        store::Client::connect({.host = "127.0.0.1",
                                .port = store_port(),
                                .deadline = std::chrono::steady_clock::now() + testing::kPatience}));
    ::setenv("DDP_NCCL_LIBRARY", DDP_FAKE_NCCL, 1);
    InitOptions options;
    options.backend = "nccl";
    options.timeout = testing::kPatience;  // of the meeting and of the first calls, which must succeed
    auto group = init_process_group({.rank = rank, .size = 2, .store = store}, options);
    nccl_test::connect(group);
    EXPECT_EQ(connections_to(store_port()), 1U) << "the object's own";
    if (rank == 1) return group.abort("enough of it");
    const Array<float> values(group.device(), 100);
    EXPECT_THROW(
        {
          group.all_reduce(values.range(), ReduceOp::sum, {.timeout = kLimit});
          group.barrier({.timeout = kLimit});
        },
        Error);
  });
}

TEST(Mismatch, IsFoundWhenTheTimeIsUp) {
  run_ranks(2, [](int rank) {
    auto group = join();
    const Array<float> values(group.device(), 100);
    const auto error = thrown_by<MismatchError>([&] {
      rank == 0 ? group.all_reduce(values.range(), ReduceOp::sum, {.timeout = kLimit})
                : group.broadcast(values.range(), 0, {.timeout = kLimit});
      group.barrier({.timeout = kLimit});
    });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                AllOf(HasSubstr("rank 0 called all_reduce of 100 float32 (sum)"),
                      HasSubstr("rank 1 called broadcast of 100 float32 from rank 0"), HasSubstr("(call 1)")));
    expect_group_is_useless(group, "broadcast of 100");
  });
}

TEST(AsyncError, OnOneRankEndsTheGroupOnAll) {
  run_ranks(3, [](int rank) {
    if (rank == 1) set_faults("ncclAllReduce:5:async:6");
    auto group = join();
    const Array<float> values(group.device(), 100);
    const auto error = thrown_by<RankFailure>([&] { reduce_without_end(group, values.range()); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr(rank == 1 ? "this rank found in " : "rank 1 found in "),
                                     HasSubstr("remote process exited"), HasSubstr("ranks: ")));
    EXPECT_EQ(error->ranks(), rank == 1 ? std::vector<int>{} : std::vector<int>{1});
    expect_group_is_useless(group, "rank");
  });
}

TEST(AsyncError, IsFoundThoughNobodyCallsAnything) {
  run_ranks(1, [](int) {
    set_faults("ncclAllReduce:2:async:6");
    auto group = join();
    group.barrier();
    const Array<float> values(group.device(), 100);
    Gate gate;
    gate.close(nullptr);  // so that NCCL errs after the call
    Work work = group.all_reduce_async(values.range());
    EXPECT_FALSE(work.is_completed());
    gate.open();
    wait_until([&] { return work.is_completed(); });
    thrown_by<RankFailure>([&] { work.wait(); });
  });
}

// Rank 1 dies by a fault of its own; the others reduce until they see it.
void expect_death_is_seen(const std::string& fault, const std::string& dead_peer) {
  SCOPED_TRACE(fault + ", the others are told: " + dead_peer);
  RankProcesses ranks(3, [&](int rank) {
    set_variable("FAKE_NCCL_DEAD_PEER", dead_peer);
    if (rank == 1) set_faults(fault);
    auto group = join(milliseconds(dead_peer == "hang" ? 3'000 : 30'000));
    const Array<float> values(group.device(), 100);
    try {
      reduce_without_end(group, values.range());
    } catch (const RankFailure& error) {
      EXPECT_EQ(dead_peer, "error");
      EXPECT_THAT(error.ranks(), ElementsAre(1));
      EXPECT_THAT(error.what(), HasSubstr("rank 1 did not answer"));
    } catch (const TimeoutError& error) {
      EXPECT_EQ(dead_peer, "hang");
      EXPECT_THAT(error.ranks(), ElementsAre(1));
      EXPECT_THAT(error.what(), HasSubstr("rank 1 did not answer"));
    }
    expect_group_is_useless(group, "rank 1");
  });
  ranks.expect_killed(1);
  ranks.expect_success(0);
  ranks.expect_success(2);
}

TEST(Timeout, DoesNotCountTheAbortedCallAsCompleted) {
  const AllHere all_here;
  Shared<std::atomic<bool>> is_seen;
  run_ranks(2, [&](int rank) {
    auto group = join();
    nccl_test::connect(group);  // calls 1 and 2
    all_here.wait(2);
    if (rank == 1) return wait_until([&] { return is_seen->load(); });
    const Array<float> values(group.device(), 10);
    Work work = group.all_reduce_async(values.range(), ReduceOp::sum, {.timeout = milliseconds(100)});
    const auto error = thrown_by<TimeoutError>([&] { static_cast<void>(work.wait_for(std::chrono::minutes(1))); });
    *is_seen = true;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("rank 0 called 3, started 3, completed 2"));
  });
}

TEST(Death, BeforeACollectiveIsSeen) { expect_death_is_seen("cudaEventRecord:12:die", "error"); }
TEST(Death, InACollectiveIsSeen) { expect_death_is_seen("ncclAllReduce:5:die_inside", "error"); }
TEST(Death, OfWhichNcclSaysNothingIsSeenAtTheDeadline) { expect_death_is_seen("ncclAllReduce:5:die_inside", "hang"); }

TEST(Death, IsToldByTheLauncherBeforeAnyDeadline) {
  const AllHere all_here;
  RankProcesses ranks(2, [&](int rank) {
    set_variable("FAKE_NCCL_DEAD_PEER", "hang");
    auto group = join();
    group.barrier();
    all_here.wait(2);
    if (rank == 1) ::raise(SIGKILL);
    const Array<float> values(group.device(), 100);
    Work work = group.all_reduce_async(values.range());
    work.wait();
    std::thread agent(
        [&] { group.impl()->abort("the round is over: rank 1 was killed", process_group::AbortCause::round_over); });
    const auto error = thrown_by<RoundOver>([&] { group.barrier(); });
    agent.join();
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("the round is over: rank 1 was killed"));
  });
  ranks.expect_killed(1);
  ranks.expect_success(0);
}

// As where a rank of this host is stopped, and NCCL waits for it.
TEST(Abort, ThatNcclDoesNotEndHoldsUpNoError) {
  const AllHere all_here;
  Shared<std::atomic<int>> timed_out;
  run_ranks(2, [&](int rank) {
    if (rank == 0) set_faults("ncclCommAbort:1:hang");
    {
      auto group = join();
      const Array<float> values(group.device(), 100);
      group.all_reduce(values.range());
      group.barrier();
      all_here.wait(2);
      if (rank == 1) {
        wait_until([&] { return timed_out->load() == 1; });
      } else {
        const auto error = thrown_by<TimeoutError>([&] {
          group.all_reduce(values.range(), ReduceOp::sum, {.timeout = milliseconds(300)});
          group.barrier();
        });
        ++*timed_out;
        ASSERT_TRUE(error);
        EXPECT_THAT(error->ranks(), ElementsAre(1));
        thrown_by<AbortedError>([&] { group.barrier(); });
      }
    }
    auto next = join();
    const Array<float> values(next.device(), Values(10, 1));
    next.all_reduce(values.range());
    EXPECT_EQ(values.values(), Values(10, 2));
  });
}

// Rank 0 dies in NCCL's abort. Rank 1 can learn of the failure from the store only, where rank 0 must have put it by
// then.
TEST(Abort, IsToldToTheOthersBeforeNcclAborts) {
  struct Steps {
    std::atomic<bool> rank_1_has_joined, rank_0_is_dead;
  };
  Shared<Steps> steps;
  RankProcesses ranks(2, [&](int rank) {
    set_variable("FAKE_NCCL_DEAD_PEER", "hang");
    if (rank == 0) set_faults("ncclCommAbort:1:die");
    auto group = join();
    if (rank == 0) {
      wait_until([&] { return steps->rank_1_has_joined.load(); });
      return group.abort("enough");
    }
    steps->rank_1_has_joined = true;
    wait_until([&] { return steps->rank_0_is_dead.load(); });
    const auto error = thrown_by<RankFailure>([&] { group.barrier({.timeout = milliseconds(1)}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("rank 0 aborted the group: enough"));
  });
  ranks.expect_killed(0);
  steps->rank_0_is_dead = true;
  ranks.expect_success(1);
}

// Until then the device may write to the work's memory.
TEST(Abort, LeavesWorkUnderWayUntilNcclHasAborted) {
  const AllHere all_here;
  Shared<std::atomic<bool>> is_over;
  run_ranks(2, [&](int rank) {
    if (rank == 0) set_faults("ncclCommAbort:1:delay:300");
    auto group = join();
    const Array<float> values(group.device(), 100);
    group.barrier();
    all_here.wait(2);
    if (rank == 1) return wait_until([&] { return is_over->load(); });
    Work work = group.all_reduce_async(values.range());
    const auto begin = std::chrono::steady_clock::now();
    group.abort("enough");
    wait_until([&] { return work.is_completed(); });
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(300));
    EXPECT_EQ(fake_gpu_calls("ncclCommAbort"), 1U);
    EXPECT_TRUE(thrown_by<AbortedError>([&] { work.wait(); }));
    *is_over = true;
  });
}

void expect_abort_ends_a_call_inside_nccl(const char* library) {
  run_ranks(1, [library](int) {
    set_variable("DDP_NCCL_LIBRARY", library);
    set_faults("ncclAllReduce:3:delay:600000");
    auto group = join();
    const Array<float> values(group.device(), 100);
    std::thread other([&] {
      wait_until([] { return fake_gpu_calls("ncclAllReduce") >= 3; });
      group.abort("enough");
    });
    const auto error = thrown_by<AbortedError>([&] { reduce_without_end(group, values.range()); });
    other.join();
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("enough"));
    expect_group_is_useless(group, "enough");
  });
}

TEST(Abort, OfACallThatIsStillInsideNccl) { expect_abort_ends_a_call_inside_nccl(DDP_FAKE_NCCL); }
TEST(Abort, OfACallThatIsStillInsideAnOldNccl) { expect_abort_ends_a_call_inside_nccl(DDP_FAKE_NCCL_OLD); }

// As the first call of a kind may be, which connects the ranks.
TEST(Timeout, OfACallThatIsStillInsideNccl) {
  run_ranks(1, [](int) {
    set_faults("ncclAllReduce:1:delay:600000");
    auto group = join();
    const Array<float> values(group.device(), 100);
    const auto error = thrown_by<TimeoutError>(
        [&] { group.all_reduce(values.range(), ReduceOp::sum, {.timeout = milliseconds(50)}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("all_reduce of 100 float32"), HasSubstr("50 ms")));
    expect_group_is_useless(group, "50 ms");
  });
}

// NCCL_COMM_BLOCKING=0 has NCCL give back communicators that do not block whatever libddp asks for.
TEST(Communicator, ThatDoesNotBlockIsWaitedFor) {
  run_ranks(2, [](int rank) {
    set_variable("NCCL_COMM_BLOCKING", "0");
    const std::string late = "ncclCommSplit:2:delay:50;ncclCommFinalize:2:delay:50";
    set_faults(rank == 1 ? late + ";ncclAllReduce:1:delay:50" : late);
    auto group = join();
    const Array<float> values(group.device(), Values(3, 1));
    group.all_reduce(values.range());
    group.all_reduce(values.range());
    EXPECT_THAT(values.values(), ElementsAre(4, 4, 4));
    {
      auto half = group.split(0);
      half.all_reduce(values.range());
      EXPECT_THAT(values.values(), ElementsAre(8, 8, 8));
    }
    group = {};
    wait_until([] { return fake_gpu_live("ncclComm") == 0; });
  });
}

// NCCL's last call in good order may wait for ranks of this host that do not make theirs.
TEST(Leaving, IsToldBeforeNcclGivesBackAnything) {
  Shared<std::atomic<bool>> is_seen;
  run_ranks(2, [&](int rank) {
    set_variable("FAKE_NCCL_DEAD_PEER", "hang");
    if (rank == 1) set_faults("ncclCommFinalize:1:hang;ncclCommDestroy:1:hang");
    std::optional<ProcessGroup> group = join(std::chrono::minutes(10));
    group->barrier();
    const Array<float> values(group->device(), 100);
    if (rank == 1) {
      group.reset();
      return wait_until([&] { return is_seen->load(); });
    }
    const auto error = thrown_by<RankFailure>([&] { reduce_without_end(*group, values.range()); });
    *is_seen = true;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("rank 1 has left the group"));
  });
}

TEST(Leaving, IsNotHeldUpByANcclThatDoesNotEnd) {
  run_ranks(2, [](int rank) {
    if (rank == 1) set_faults("ncclCommDestroy:1:hang");
    {
      auto group = join();
      group.barrier();
    }
    auto next = join();
    next.barrier();
  });
}

TEST(Failure, ToldToTheHostsSideOfAGroupOfBoth) {
  run_ranks(2, [](int rank) {
    if (rank == 1) set_faults("ncclAllReduce:3:async:6");
    auto group = join(testing::kPatience, {.backend = "cpu:cpu,cuda:nccl"});
    const Array<float> values(group.device(), 100);
    thrown_by<RankFailure>([&] { reduce_without_end(group, values.range()); });
    std::vector<float> host(10);
    EXPECT_THROW(
        {
          for (;;) group.all_reduce(host);
        },
        Error);
  });
}

// In a process of its own: it is to end.
void expect_process_ends(const std::string& faults) {
  SCOPED_TRACE(faults);
  run_ranks(1, [&](int) {
    EXPECT_EXIT(
        {
          set_faults(faults);
          auto group = join();
          const Array<float> values(group.device(), 100);
          reduce_without_end(group, values.range());
        },
        ::testing::ExitedWithCode(1),
        AllOf(
            HasSubstr("libddp: this process ends: an illegal memory access was encountered (cudaErrorIllegalAddress)"),
            HasSubstr("no later CUDA call of this process can succeed"), HasSubstr("compute-sanitizer")));
  });
}

TEST(StickyError, EndsTheProcess) {
  expect_process_ends("cudaEventQuery:10:sticky:700");
  expect_process_ends("cudaEventRecord:10:sticky:700");
  expect_process_ends("cudaStreamWaitEvent:5:sticky:700");
}

TEST(StickyError, MetByNcclEndsTheProcessToo) {
  expect_process_ends("ncclAllReduce:3:return:1;cudaStreamQuery:1:sticky:700");
}

TEST(CudaError, ThatPassesIsThrownAndEndsTheGroup) {
  run_ranks(1, [](int) {
    set_faults("ncclAllReduce:3:return:1");
    auto group = join();
    const Array<float> values(group.device(), 100);
    const auto error = thrown_by<Error>([&] { reduce_without_end(group, values.range()); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("unhandled cuda error"));
    expect_group_is_useless(group, "unhandled cuda error");
  });
}

// A group of NCCL belongs to its thread: one that is left open would swallow the calls of the next communicator.
TEST(CudaError, InsideAGroupOfNcclClosesThatGroup) {
  run_ranks(1, [](int) {
    set_variable("DDP_NCCL_LIBRARY", DDP_FAKE_NCCL_OLD);  // lacks ncclAlltoAll, so libddp copies a rank's own part
    set_faults("cudaMemcpyAsync:1:return:1");
    {
      auto group = join();
      const Array<float> input(group.device(), 10), output(group.device(), 10);
      const auto error = thrown_by<Error>([&] { group.all_to_all(input.range(), output.range()); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("copying a rank's own part"));
    }
    auto next = join();
    const Array<float> input(next.device(), Values(10, 1)), output(next.device(), 10);
    next.all_gather(input.range(), output.range());
    EXPECT_EQ(output.values(), Values(10, 1));
  });
}

TEST(NcclError, OfGroupEndIsThrownAndEndsTheGroup) {
  run_ranks(1, [](int) {
    set_faults("ncclGroupEnd:2:return:2");
    auto group = join();
    group.barrier();
    const Array<float> values(group.device(), 10);
    const auto error = thrown_by<RankFailure>([&] { group.all_reduce(values.range()); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("this rank found in all_reduce of 10 float32 (sum), call 2"),
                                     HasSubstr("unhandled system error")));
    expect_group_is_useless(group, "unhandled system error");
  });
}

// NCCL's own communicator is of no use after it.
TEST(InvalidArgument, OfNcclEndsTheGroupOnAll) {
  run_ranks(2, [](int rank) {
    if (rank == 1) set_faults("ncclAllReduce:2:return:4");
    auto group = join(std::chrono::minutes(10));  // not seen by a deadline
    const Array<float> values(group.device(), Values(10, 1));
    if (rank == 1) {
      group.all_reduce(values.range());
      const auto error = thrown_by<InvalidArgument>([&] { group.all_reduce(values.range()); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), HasSubstr("all_reduce of 10 float32 (sum) is refused by NCCL"));
    } else {
      EXPECT_THROW(reduce_without_end(group, values.range()), Error);
    }
    expect_group_is_useless(group, "invalid argument");
  });
}

TEST(Capture, IsNotSpoiltByAskingWhetherWorkIsOver) {
  run_ranks(1, [](int) {
    auto group = join();
    const Array<float> values(group.device(), Values(10, 1));
    cudaStream_t stream = nccl_test::make_stream();
    cudaGraph_t graph = nullptr;
    nccl_test::Gate gate;
    gate.close(nullptr);
    Work work = group.all_reduce_async(values.range());
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_FALSE(work.is_completed());
    EXPECT_FALSE(work.wait_for(milliseconds(1)));
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    gate.open();
    EXPECT_TRUE(work.wait_for(milliseconds(10'000)));  // the gate lives until the stream has passed it
  });
}

// The communicator that sets up a group's own goes in the background, and frees memory then.
TEST(Capture, IsNotSpoiltByTheEndOfACommunicator) {
  run_ranks(1, [](int) {
    set_faults("ncclCommFinalize:1:delay:50");
    auto group = join();
    cudaStream_t stream = nccl_test::make_stream();
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    wait_until([] { return fake_gpu_live("ncclComm") == 1 && fake_gpu_calls("cudaFree") > 0; });
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  });
}

}  // namespace
}  // namespace ddp::fake_gpu
